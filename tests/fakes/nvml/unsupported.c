/* Functions that exist and that a T4 does not support: GPU instances, NVLink, fields. */
#include "nvml.h"

#define UNSUPPORTED(name)                                              \
	API nvmlReturn name(nvmlDevice device)                         \
	{                                                              \
		const struct fg_gpu *gpu;                              \
		nvmlReturn rc = nv_device(device, __func__, &gpu);     \
		return rc ? rc : NVML_NOT_SUPPORTED;                   \
	}

/* The caller's further arguments stay untouched, so they need no names here. */
UNSUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
UNSUPPORTED(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)
UNSUPPORTED(nvmlDeviceGetGpuInstanceId)
UNSUPPORTED(nvmlDeviceGetComputeInstanceId)
UNSUPPORTED(nvmlDeviceGetGpuInstances)
UNSUPPORTED(nvmlDeviceGetGpuInstanceById)
UNSUPPORTED(nvmlDeviceGetGpuInstanceProfileInfo)
UNSUPPORTED(nvmlDeviceGetGpuInstancePossiblePlacements_v2)
UNSUPPORTED(nvmlDeviceCreateGpuInstance)
UNSUPPORTED(nvmlDeviceGetNvLinkState)
UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
