/* How a card is: errors of its memory, heat, and what the driver wants done with it. */
#define _GNU_SOURCE
#include "nvml.h"

#include <string.h>

#define UNCORRECTED 1u
#define FI_DEV_GET_GPU_RECOVERY_ACTION 230u

/* Corrected errors never happen here; both counters, since the start and ever, are one. */
API nvmlReturn nvmlDeviceGetTotalEccErrors(nvmlDevice device, unsigned type, unsigned counter,
					   unsigned long long *errors)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!errors || type > 1 || counter > 1)
		return NVML_INVALID_ARGUMENT;
	*errors = type == UNCORRECTED ? gpu->ecc_uncorrected : 0;
	return NVML_SUCCESS;
}

/* Since Ampere; a T4 retires pages instead. */
API nvmlReturn nvmlDeviceGetRemappedRows(nvmlDevice device, unsigned *corrected,
					 unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!corrected || !uncorrected || !pending || !failed)
		return NVML_INVALID_ARGUMENT;
	if (!gpu->remap)
		return NVML_NOT_SUPPORTED;
	*corrected = 0;
	*uncorrected = gpu->ecc_uncorrected;
	*pending = gpu->remap_pending;
	*failed = gpu->remap_failed;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice device, unsigned *pending)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!pending)
		return NVML_INVALID_ARGUMENT;
	if (gpu->remap)
		return NVML_NOT_SUPPORTED;
	*pending = gpu->remap_pending;
	return NVML_SUCCESS;
}

static nvmlReturn clock_reasons(nvmlDevice device, const char *function, unsigned long long *mask)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, function, &gpu);
	if (rc)
		return rc;
	if (!mask)
		return NVML_INVALID_ARGUMENT;
	*mask = gpu->clock_reasons;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice device, unsigned long long *mask)
{
	return clock_reasons(device, __func__, mask);
}

API nvmlReturn nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice device,
							 unsigned long long *mask)
{
	return clock_reasons(device, __func__, mask);
}

/* Each field has a result of its own; one that is not known here is not supported. */
API nvmlReturn nvmlDeviceGetFieldValues(nvmlDevice device, int count, nvmlFieldValue *values)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (count < 1 || !values)
		return NVML_INVALID_ARGUMENT;
	for (int i = 0; i < count; i++) {
		bool known = values[i].field == FI_DEV_GET_GPU_RECOVERY_ACTION;
		values[i].value.ull = known ? gpu->recovery_action : 0;
		values[i].type = NVML_VALUE_UNSIGNED;
		values[i].result = known ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
	}
	return NVML_SUCCESS;
}
