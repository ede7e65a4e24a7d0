/* Finds libnvidia-ml as the real nvidia-smi does: by name, then at the usual places. */
#define _GNU_SOURCE
#include "smi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvml nvml;

static const char *const places[] = {
	"libnvidia-ml.so.1",
	"/usr/lib64/libnvidia-ml.so.1",
	"/usr/lib/libnvidia-ml.so.1",
	"/usr/lib/nvidia/libnvidia-ml.so.1",
	NULL,
};

static const struct {
	const char *symbol;
	size_t offset;
} functions[] = {
	{"nvmlInit_v2", offsetof(struct nvml, init)},
	{"nvmlErrorString", offsetof(struct nvml, error_string)},
	{"nvmlSystemGetDriverVersion", offsetof(struct nvml, driver_version)},
	{"nvmlSystemGetNVMLVersion", offsetof(struct nvml, nvml_version)},
	{"nvmlSystemGetCudaDriverVersion", offsetof(struct nvml, cuda_version)},
	{"nvmlDeviceGetCount_v2", offsetof(struct nvml, count)},
	{"nvmlDeviceGetHandleByIndex_v2", offsetof(struct nvml, by_index)},
	{"nvmlDeviceGetUUID", offsetof(struct nvml, uuid)},
	{"nvmlDeviceGetName", offsetof(struct nvml, name)},
	{"nvmlDeviceGetPciInfo_v3", offsetof(struct nvml, pci)},
	{"nvmlDeviceGetMemoryInfo", offsetof(struct nvml, memory_v1)},
	{"nvmlDeviceGetMemoryInfo_v2", offsetof(struct nvml, memory_v2)},
	{"nvmlDeviceGetCudaComputeCapability", offsetof(struct nvml, capability)},
	{"nvmlDeviceGetPersistenceMode", offsetof(struct nvml, persistence)},
	{"nvmlDeviceGetDisplayActive", offsetof(struct nvml, display)},
	{"nvmlDeviceGetComputeMode", offsetof(struct nvml, compute_mode)},
	{"nvmlDeviceGetFanSpeed", offsetof(struct nvml, fan)},
	{"nvmlDeviceGetTemperature", offsetof(struct nvml, temperature)},
	{"nvmlDeviceGetPerformanceState", offsetof(struct nvml, state)},
	{"nvmlDeviceGetPowerUsage", offsetof(struct nvml, power)},
	{"nvmlDeviceGetEnforcedPowerLimit", offsetof(struct nvml, power_limit)},
	{"nvmlDeviceGetUtilizationRates", offsetof(struct nvml, utilization)},
	{"nvmlDeviceGetMigMode", offsetof(struct nvml, mig)},
	{"nvmlDeviceGetEccMode", offsetof(struct nvml, ecc)},
	{"nvmlDeviceGetTotalEccErrors", offsetof(struct nvml, ecc_errors)},
	{"nvmlDeviceGetComputeRunningProcesses_v3", offsetof(struct nvml, processes)},
	{"nvmlSystemGetProcessName", offsetof(struct nvml, process_name)},
};

/* What a missing function answers, so that callers need not ask whether it is there. All take
 * their arguments in registers, so one function stands in for every signature. */
static nvmlReturn missing(void)
{
	return 13; /* function not found */
}

static int no_driver(nvmlReturn rc)
{
	if (rc == NVML_DRIVER_NOT_LOADED) {
		puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
		     "Make sure that the latest NVIDIA driver is installed and running.\n");
		return rc;
	}
	printf("Failed to initialize NVML: %s\n", nvml.error_string(rc));
	return rc < 255 ? rc : 255;
}

int smi_load(void)
{
	void *library = NULL;
	for (unsigned i = 0; places[i] && !library; i++)
		library = dlopen(places[i], RTLD_NOW);
	if (!library) {
		puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make "
		     "sure that the NVIDIA Display Driver is properly installed and present in your "
		     "system.\nPlease also try adding directory that contains libnvidia-ml.so to "
		     "your system PATH.");
		return SMI_NO_LIBRARY;
	}
	for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *address = dlsym(library, functions[i].symbol);
		if (!address)
			address = (void *)missing;
		memcpy((char *)&nvml + functions[i].offset, &address, sizeof address);
	}
	nvmlReturn rc = nvml.init();
	return rc ? no_driver(rc) : SMI_OK;
}

nvmlReturn smi_memory(nvmlDevice device, nvmlMemory_v2 *memory)
{
	nvmlMemory old;
	*memory = (nvmlMemory_v2){.version = NVML_STRUCT_VERSION(nvmlMemory_v2, 2)};
	nvmlReturn rc = nvml.memory_v2(device, memory);
	if (rc != 13)
		return rc;
	rc = nvml.memory_v1(device, &old);
	memory->total = old.total;
	memory->used = old.used;
	memory->free = old.free;
	return rc;
}

unsigned smi_processes(nvmlDevice device, nvmlProcess_v2 out[SMI_MAX_PROCESSES])
{
	unsigned count = SMI_MAX_PROCESSES;
	return nvml.processes(device, &count, out) == NVML_SUCCESS ? count : 0;
}

static bool names(const char *item, unsigned index, nvmlDevice device)
{
	char uuid[96] = "", *end;
	nvmlPciInfo_v3 pci = {.domain = 0};
	unsigned long number = strtoul(item, &end, 10);
	if (end != item && !*end)
		return number == index;
	if (nvml.uuid(device, uuid, sizeof uuid) == 0 && !strcmp(uuid, item))
		return true;
	return nvml.pci(device, &pci) == 0 &&
	       (!strcasecmp(pci.bus_id, item) || !strcasecmp(pci.bus_id_legacy, item));
}

static bool wanted(const char *list, unsigned index, nvmlDevice device)
{
	char copy[1024];
	if (!list)
		return true;
	snprintf(copy, sizeof copy, "%s", list);
	for (char *save, *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save))
		if (names(item, index, device))
			return true;
	return false;
}

/* The real one gives up at a card that it cannot reach. */
static int unreachable(unsigned index, nvmlReturn rc)
{
	printf("Unable to determine the device handle for GPU%u: %s\n", index, nvml.error_string(rc));
	return rc < 255 ? rc : 255;
}

int smi_select(const char *list, struct smi_gpus *out)
{
	unsigned count = 0;
	out->count = 0;
	nvmlReturn rc = nvml.count(&count);
	if (rc)
		return unreachable(0, rc);
	for (unsigned i = 0; i < count && i < SMI_MAX_GPUS; i++) {
		nvmlDevice device;
		rc = nvml.by_index(i, &device);
		if (rc)
			return unreachable(i, rc);
		if (wanted(list, i, device))
			out->gpu[out->count++] = (struct smi_gpu){i, device};
	}
	if (out->count)
		return SMI_OK;
	puts("No devices were found");
	return SMI_NO_DEVICE;
}
