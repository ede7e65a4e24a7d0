/* Start and end of NVML, its strings, and how a call finds its card. */
#define _GNU_SOURCE
#include "nvml.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct nvmlDevice {
	unsigned key;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static unsigned count; /* cards at the time of initialisation, as with the real library */
static unsigned keys[FG_MAX_GPUS];
static struct nvmlDevice handles[FG_MAX_GPUS];

/* What the real library says when /dev/nvidiactl cannot be opened. */
static nvmlReturn control_error(int error)
{
	switch (error) {
	case 0:
		return NVML_SUCCESS;
	case EACCES:
		return NVML_NO_PERMISSION;
	case EPERM: /* the container's device cgroup */
		return NVML_UNKNOWN;
	default:
		return NVML_DRIVER_NOT_LOADED;
	}
}

static nvmlReturn init(void)
{
	const struct fg_conf *conf = fg_conf_get();
	if (!conf)
		return NVML_DRIVER_NOT_LOADED;
	nvmlReturn rc = fg_fault(&conf->faults, "nvmlInit");
	if (!rc)
		rc = control_error(fg_node(conf, "nvidiactl"));
	if (rc)
		return rc;
	pthread_mutex_lock(&lock);
	if (users++ == 0) {
		count = fg_visible(conf, keys);
		for (unsigned key = 0; key < FG_MAX_GPUS; key++)
			handles[key].key = key;
	}
	pthread_mutex_unlock(&lock);
	return NVML_SUCCESS;
}

API nvmlReturn nvmlInit(void)
{
	return init();
}

API nvmlReturn nvmlInit_v2(void)
{
	return init();
}

API nvmlReturn nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return init();
}

API nvmlReturn nvmlShutdown(void)
{
	pthread_mutex_lock(&lock);
	nvmlReturn rc = users ? NVML_SUCCESS : NVML_UNINITIALIZED;
	if (users)
		users--;
	pthread_mutex_unlock(&lock);
	return rc;
}

nvmlReturn nv_driver(const char *function, const struct fg_conf **conf)
{
	if (!__atomic_load_n(&users, __ATOMIC_ACQUIRE))
		return NVML_UNINITIALIZED;
	*conf = fg_conf_get();
	if (!*conf)
		return NVML_UNKNOWN;
	return fg_fault(&(*conf)->faults, function);
}

nvmlDevice nv_handle(unsigned key)
{
	return &handles[key];
}

nvmlReturn nv_device(nvmlDevice device, const char *function, const struct fg_gpu **gpu)
{
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(function, &conf);
	if (rc)
		return rc;
	if (device < handles || device >= handles + FG_MAX_GPUS)
		return NVML_INVALID_ARGUMENT;
	*gpu = &conf->gpu[device->key];
	if (!(*gpu)->present || (*gpu)->lost)
		return NVML_GPU_IS_LOST;
	return fg_fault(&(*gpu)->faults, function);
}

nvmlReturn nv_string(char *out, unsigned size, const char *text)
{
	if (!out)
		return NVML_INVALID_ARGUMENT;
	if (strlen(text) >= size)
		return NVML_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

API nvmlReturn nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(__func__, &conf);
	return rc ? rc : nv_string(version, length, conf->version);
}

/* "13.580.159.04": the CUDA major before the driver's version. */
API nvmlReturn nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
	char text[48];
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(__func__, &conf);
	if (rc)
		return rc;
	snprintf(text, sizeof text, "%u.%s", conf->cuda / 1000, conf->version);
	return nv_string(version, length, text);
}

static nvmlReturn cuda_version(const char *function, int *version)
{
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(function, &conf);
	if (rc)
		return rc;
	if (!version)
		return NVML_INVALID_ARGUMENT;
	*version = (int)conf->cuda;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlSystemGetCudaDriverVersion(int *version)
{
	return cuda_version(__func__, version);
}

API nvmlReturn nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return cuda_version(__func__, version);
}

static nvmlReturn device_count(const char *function, unsigned *out)
{
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(function, &conf);
	if (rc)
		return rc;
	if (!out)
		return NVML_INVALID_ARGUMENT;
	*out = count;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetCount(unsigned *out)
{
	return device_count(__func__, out);
}

API nvmlReturn nvmlDeviceGetCount_v2(unsigned *out)
{
	return device_count(__func__, out);
}

static nvmlReturn give(const char *function, unsigned key, nvmlDevice *device)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(&handles[key], function, &gpu);
	if (!rc)
		*device = &handles[key];
	return rc;
}

static nvmlReturn by_index(const char *function, unsigned index, nvmlDevice *device)
{
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(function, &conf);
	if (rc)
		return rc;
	if (!device || index >= count)
		return NVML_INVALID_ARGUMENT;
	return give(function, keys[index], device);
}

API nvmlReturn nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice *device)
{
	return by_index(__func__, index, device);
}

API nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice *device)
{
	return by_index(__func__, index, device);
}

API nvmlReturn nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice *device)
{
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(__func__, &conf);
	if (rc)
		return rc;
	if (!uuid || !device)
		return NVML_INVALID_ARGUMENT;
	for (unsigned i = 0; i < count; i++)
		if (!strcmp(conf->gpu[keys[i]].uuid, uuid))
			return give(__func__, keys[i], device);
	return NVML_NOT_FOUND;
}

static nvmlReturn by_pci(const char *function, const char *bus_id, nvmlDevice *device)
{
	unsigned domain, bus, slot;
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(function, &conf);
	if (rc)
		return rc;
	if (!bus_id || !device || sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3)
		return NVML_INVALID_ARGUMENT;
	for (unsigned i = 0; i < count; i++) {
		const struct fg_gpu *g = &conf->gpu[keys[i]];
		if (g->present && g->domain == domain && g->bus == bus && g->device == slot)
			return give(function, keys[i], device);
	}
	return NVML_NOT_FOUND;
}

API nvmlReturn nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice *device)
{
	return by_pci(__func__, bus_id, device);
}

API nvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice *device)
{
	return by_pci(__func__, bus_id, device);
}

API nvmlReturn nvmlDeviceGetIndex(nvmlDevice device, unsigned *index)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	for (unsigned i = 0; index && i < count; i++)
		if (keys[i] == gpu->key) {
			*index = i;
			return NVML_SUCCESS;
		}
	return NVML_INVALID_ARGUMENT;
}
