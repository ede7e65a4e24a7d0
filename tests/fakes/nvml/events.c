/* XID events: a card's `xid_seq` (or a first `xid`) that changes after registration. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

struct nvmlEventSet {
	unsigned long long types[FG_MAX_GPUS];
	unsigned seen[FG_MAX_GPUS];
};

static unsigned sequence(const struct fg_gpu *gpu)
{
	return gpu->xid_seq ? gpu->xid_seq : gpu->xid != 0;
}

API nvmlReturn nvmlEventSetCreate(nvmlEventSet *set)
{
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(__func__, &conf);
	if (rc)
		return rc;
	if (!set)
		return NVML_INVALID_ARGUMENT;
	nvmlEventSet made = calloc(1, sizeof *made);
	if (!made)
		return NVML_UNKNOWN;
	*set = made;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlEventSetFree(nvmlEventSet set)
{
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(__func__, &conf);
	if (rc)
		return rc;
	if (!set)
		return NVML_INVALID_ARGUMENT;
	free(set);
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetSupportedEventTypes(nvmlDevice device, unsigned long long *types)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!types)
		return NVML_INVALID_ARGUMENT;
	*types = 0x1f; /* ECC single and double bit, performance state, XID, clock */
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceRegisterEvents(nvmlDevice device, unsigned long long types, nvmlEventSet set)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!set)
		return NVML_INVALID_ARGUMENT;
	if (types & ~0x1full || !gpu->events)
		return NVML_NOT_SUPPORTED;
	set->types[gpu->key] = types;
	set->seen[gpu->key] = sequence(gpu);
	return NVML_SUCCESS;
}

static bool next_event(const struct fg_conf *conf, nvmlEventSet set, nvmlEventData *data)
{
	for (unsigned key = 0; key < FG_MAX_GPUS; key++) {
		const struct fg_gpu *gpu = &conf->gpu[key];
		if (!gpu->present || !(set->types[key] & NVML_XID_EVENT) ||
		    sequence(gpu) == set->seen[key])
			continue;
		set->seen[key] = sequence(gpu);
		if (!gpu->xid)
			continue;
		*data = (nvmlEventData){nv_handle(key), NVML_XID_EVENT, gpu->xid, NVML_NO_INSTANCE,
					NVML_NO_INSTANCE};
		return true;
	}
	return false;
}

static long long milliseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static nvmlReturn wait_for(const char *function, nvmlEventSet set, nvmlEventData *data,
			   unsigned timeout)
{
	const struct timespec tick = {0, 20 * 1000 * 1000};
	long long end = milliseconds() + timeout;
	if (!set || !data)
		return NVML_INVALID_ARGUMENT;
	for (;;) {
		const struct fg_conf *conf;
		nvmlReturn rc = nv_driver(function, &conf);
		if (rc)
			return rc;
		if (next_event(conf, set, data))
			return NVML_SUCCESS;
		if (milliseconds() >= end)
			return NVML_TIMEOUT;
		nanosleep(&tick, NULL);
	}
}

API nvmlReturn nvmlEventSetWait(nvmlEventSet set, nvmlEventData *data, unsigned timeout)
{
	return wait_for(__func__, set, data, timeout);
}

API nvmlReturn nvmlEventSetWait_v2(nvmlEventSet set, nvmlEventData *data, unsigned timeout)
{
	return wait_for(__func__, set, data, timeout);
}
