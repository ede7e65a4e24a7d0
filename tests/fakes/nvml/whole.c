/* Figures of the whole card, whoever works on it, and the accounting of all its processes. */
#include "nvml.h"

#include <stdlib.h>

/* One number, and a second one that says for how long it was looked at. */
static nvmlReturn whole(nvmlDevice device, const char *function, unsigned *percent, unsigned *period)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, function, &gpu);
	if (rc)
		return rc;
	if (!percent || !period)
		return NVML_INVALID_ARGUMENT;
	*percent = gpu->utilization;
	*period = 167000;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetEncoderUtilization(nvmlDevice device, unsigned *percent, unsigned *period)
{
	return whole(device, __func__, percent, period);
}

API nvmlReturn nvmlDeviceGetDecoderUtilization(nvmlDevice device, unsigned *percent, unsigned *period)
{
	return whole(device, __func__, percent, period);
}

API nvmlReturn nvmlDeviceGetJpgUtilization(nvmlDevice device, unsigned *percent, unsigned *period)
{
	return whole(device, __func__, percent, period);
}

API nvmlReturn nvmlDeviceGetOfaUtilization(nvmlDevice device, unsigned *percent, unsigned *period)
{
	return whole(device, __func__, percent, period);
}

API nvmlReturn nvmlDeviceGetBAR1MemoryInfo(nvmlDevice device, nvmlMemory *memory)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!memory)
		return NVML_INVALID_ARGUMENT;
	uint64_t total = 256 * MIB, used = fg_used(gpu->key) ? 4 * MIB : 2 * MIB;
	*memory = (nvmlMemory){.total = total, .free = total - used, .used = used};
	return NVML_SUCCESS;
}

/* No values, but how many there would be. */
API nvmlReturn nvmlDeviceGetSamples(nvmlDevice device, int type, unsigned long long since,
				    int *value_type, unsigned *count, void *samples)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!value_type || !count || type < 0 || type > 9)
		return NVML_INVALID_ARGUMENT;
	(void)since;
	*value_type = 1;
	*count = samples ? 0 : 72;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetAccountingPids(nvmlDevice device, unsigned *count, unsigned *pids)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!count)
		return NVML_INVALID_ARGUMENT;
	struct fg_process *list = malloc(FG_SLOTS * sizeof *list);
	if (!list)
		return NVML_UNKNOWN;
	unsigned have = *count;
	*count = fg_processes(gpu->key, list, FG_SLOTS);
	rc = *count > have ? NVML_INSUFFICIENT_SIZE : *count && !pids ? NVML_INVALID_ARGUMENT : 0;
	for (unsigned i = 0; !rc && i < *count; i++)
		pids[i] = (unsigned)list[i].pid;
	free(list);
	return rc;
}

/* Of any process, whether it lives or not. */
API nvmlReturn nvmlDeviceGetAccountingStats(nvmlDevice device, unsigned pid, nvmlAccounting *stats)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!stats || !pid)
		return NVML_INVALID_ARGUMENT;
	*stats = (nvmlAccounting){.gpu = gpu->utilization, .running = 1};
	return NVML_SUCCESS;
}
