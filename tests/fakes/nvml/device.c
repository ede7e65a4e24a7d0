/* What a card is and how it does. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <string.h>

API nvmlReturn nvmlDeviceGetUUID(nvmlDevice device, char *uuid, unsigned length)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	return rc ? rc : nv_string(uuid, length, gpu->uuid);
}

API nvmlReturn nvmlDeviceGetName(nvmlDevice device, char *name, unsigned length)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	return rc ? rc : nv_string(name, length, gpu->name);
}

/* One number of the card, at `offset` in its configuration. */
static nvmlReturn get(nvmlDevice device, const char *function, size_t offset, unsigned *out)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, function, &gpu);
	if (rc)
		return rc;
	if (!out)
		return NVML_INVALID_ARGUMENT;
	memcpy(out, (const char *)gpu + offset, sizeof *out);
	return NVML_SUCCESS;
}

/* The same answer for every card. */
static nvmlReturn constant(nvmlDevice device, const char *function, unsigned value, unsigned *out)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, function, &gpu);
	if (rc)
		return rc;
	if (!out)
		return NVML_INVALID_ARGUMENT;
	*out = value;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetMinorNumber(nvmlDevice device, unsigned *minor)
{
	return get(device, __func__, offsetof(struct fg_gpu, minor), minor);
}

API nvmlReturn nvmlDeviceGetBrand(nvmlDevice device, unsigned *brand)
{
	return get(device, __func__, offsetof(struct fg_gpu, brand), brand);
}

API nvmlReturn nvmlDeviceGetArchitecture(nvmlDevice device, unsigned *architecture)
{
	return get(device, __func__, offsetof(struct fg_gpu, architecture), architecture);
}

API nvmlReturn nvmlDeviceGetPowerUsage(nvmlDevice device, unsigned *milliwatts)
{
	return get(device, __func__, offsetof(struct fg_gpu, power_mw), milliwatts);
}

API nvmlReturn nvmlDeviceGetEnforcedPowerLimit(nvmlDevice device, unsigned *milliwatts)
{
	return get(device, __func__, offsetof(struct fg_gpu, power_limit_mw), milliwatts);
}

API nvmlReturn nvmlDeviceGetTemperature(nvmlDevice device, unsigned sensor, unsigned *celsius)
{
	if (sensor != 0)
		return NVML_INVALID_ARGUMENT;
	return get(device, __func__, offsetof(struct fg_gpu, temperature), celsius);
}

API nvmlReturn nvmlDeviceGetComputeMode(nvmlDevice device, unsigned *mode)
{
	return get(device, __func__, offsetof(struct fg_gpu, compute_mode), mode);
}

API nvmlReturn nvmlDeviceGetPersistenceMode(nvmlDevice device, unsigned *mode)
{
	return constant(device, __func__, 1, mode);
}

API nvmlReturn nvmlDeviceGetPerformanceState(nvmlDevice device, unsigned *state)
{
	return constant(device, __func__, 8, state);
}

API nvmlReturn nvmlDeviceGetDisplayActive(nvmlDevice device, unsigned *active)
{
	return constant(device, __func__, 0, active);
}

API nvmlReturn nvmlDeviceIsMigDeviceHandle(nvmlDevice device, unsigned *is_mig)
{
	return constant(device, __func__, 0, is_mig);
}

/* A T4 has no fan of its own. */
API nvmlReturn nvmlDeviceGetFanSpeed(nvmlDevice device, unsigned *percent)
{
	(void)percent;
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	return rc ? rc : NVML_NOT_SUPPORTED;
}

API nvmlReturn nvmlDeviceGetCudaComputeCapability(nvmlDevice device, int *major, int *minor)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!major || !minor)
		return NVML_INVALID_ARGUMENT;
	*major = (int)gpu->cc_major;
	*minor = (int)gpu->cc_minor;
	return NVML_SUCCESS;
}

/* PCI device 10DE:1EB8 and subsystem 10DE:12A2: a Tesla T4. */
#define T4_DEVICE 0x1eb810deu
#define T4_SUBSYSTEM 0x12a210deu

static nvmlReturn pci_v2(nvmlDevice device, const char *function, nvmlPciInfo_v2 *pci)
{
	const struct fg_gpu *g;
	nvmlReturn rc = nv_device(device, function, &g);
	if (rc)
		return rc;
	if (!pci)
		return NVML_INVALID_ARGUMENT;
	*pci = (nvmlPciInfo_v2){.domain = g->domain, .bus = g->bus, .device = g->device,
				.device_id = T4_DEVICE, .subsystem_id = T4_SUBSYSTEM};
	snprintf(pci->bus_id, sizeof pci->bus_id, "%04X:%02X:%02X.0", g->domain & 0xffff,
		 g->bus & 0xff, g->device & 0xff);
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetPciInfo(nvmlDevice device, nvmlPciInfo_v2 *pci)
{
	return pci_v2(device, __func__, pci);
}

API nvmlReturn nvmlDeviceGetPciInfo_v2(nvmlDevice device, nvmlPciInfo_v2 *pci)
{
	return pci_v2(device, __func__, pci);
}

API nvmlReturn nvmlDeviceGetPciInfo_v3(nvmlDevice device, nvmlPciInfo_v3 *pci)
{
	const struct fg_gpu *g;
	nvmlReturn rc = nv_device(device, __func__, &g);
	if (rc)
		return rc;
	if (!pci)
		return NVML_INVALID_ARGUMENT;
	*pci = (nvmlPciInfo_v3){.domain = g->domain, .bus = g->bus, .device = g->device,
				.device_id = T4_DEVICE, .subsystem_id = T4_SUBSYSTEM};
	snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.0",
		 g->domain & 0xffff, g->bus & 0xff, g->device & 0xff);
	snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", g->domain, g->bus, g->device);
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetUtilizationRates(nvmlDevice device, nvmlUtilization *rates)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!rates)
		return NVML_INVALID_ARGUMENT;
	*rates = (nvmlUtilization){.gpu = gpu->utilization};
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetEccMode(nvmlDevice device, unsigned *now, unsigned *pending)
{
	nvmlReturn rc = constant(device, __func__, 1, now);
	return rc ? rc : constant(device, __func__, 1, pending);
}

/* A T4 knows no MIG; `mig = disabled|enabled` plays a card that does. */
API nvmlReturn nvmlDeviceGetMigMode(nvmlDevice device, unsigned *now, unsigned *pending)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!now || !pending)
		return NVML_INVALID_ARGUMENT;
	if (!gpu->mig)
		return NVML_NOT_SUPPORTED;
	*now = *pending = gpu->mig == 2;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetMaxMigDeviceCount(nvmlDevice device, unsigned *count)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!count)
		return NVML_INVALID_ARGUMENT;
	*count = gpu->mig ? 7 : 0;
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetNumaNodeId(nvmlDevice device, unsigned *node)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!node)
		return NVML_INVALID_ARGUMENT;
	if (gpu->numa_node < 0)
		return NVML_NOT_SUPPORTED;
	*node = (unsigned)gpu->numa_node;
	return NVML_SUCCESS;
}
