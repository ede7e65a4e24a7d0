/* How busy each process keeps a card: a percent for each kernel that it has launched, up to 99. The
 * samples are as new as the question, and the room that is asked for is always the same. As in the
 * real library, those of other PID namespaces are in, by a number that is not theirs here. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

#define ROOM 72u

static unsigned long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_nsec / 1000;
}

static unsigned percent(const struct fg_process *process)
{
	return process->launches < 99 ? (unsigned)process->launches : 99;
}

/* The processes that launched anything; the caller frees `list`. */
static nvmlReturn busy(unsigned key, struct fg_process **list, unsigned *found)
{
	*list = malloc(FG_SLOTS * sizeof **list);
	if (!*list)
		return NVML_UNKNOWN;
	unsigned n = fg_all_processes(key, *list, FG_SLOTS);
	*found = 0;
	for (unsigned i = 0; i < n && *found < ROOM; i++)
		if ((*list)[i].launches)
			(*list)[(*found)++] = (*list)[i];
	return *found ? NVML_SUCCESS : NVML_NOT_FOUND;
}

API nvmlReturn nvmlDeviceGetProcessUtilization(nvmlDevice device, nvmlSample *out, unsigned *count,
					       unsigned long long since)
{
	unsigned found;
	struct fg_process *list;
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!count)
		return NVML_INVALID_ARGUMENT;
	if (!out || *count < ROOM) {
		*count = ROOM;
		return NVML_INSUFFICIENT_SIZE;
	}
	if (since >= now())
		return NVML_NOT_FOUND;
	rc = busy(gpu->key, &list, &found);
	for (unsigned i = 0; !rc && i < found; i++)
		out[i] = (nvmlSample){.pid = (unsigned)list[i].pid, .time = now(),
				      .sm = percent(&list[i]), .memory = percent(&list[i]) / 2,
				      .encoder = 3, .decoder = 4};
	if (!rc)
		*count = found;
	free(list);
	return rc;
}

API nvmlReturn nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice device, nvmlSampleList *out)
{
	unsigned found;
	struct fg_process *list;
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!out)
		return NVML_INVALID_ARGUMENT;
	if (out->version != NVML_STRUCT_VERSION(nvmlSampleList, 1))
		return NVML_VERSION_MISMATCH;
	if (!out->samples || out->count < ROOM) {
		out->count = ROOM;
		return NVML_INSUFFICIENT_SIZE;
	}
	if (out->since >= now())
		return NVML_NOT_FOUND;
	rc = busy(gpu->key, &list, &found);
	for (unsigned i = 0; !rc && i < found; i++)
		out->samples[i] = (nvmlSampleInfo){.pid = (unsigned)list[i].pid, .time = now(),
						   .sm = percent(&list[i]),
						   .memory = percent(&list[i]) / 2};
	if (!rc)
		out->count = found;
	free(list);
	return rc;
}
