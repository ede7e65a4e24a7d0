/* From CUDA's devices to this process's GPU records. */
#ifndef AP_CUDA_DEVICE_H
#define AP_CUDA_DEVICE_H

#include "../common/process.h"
#include "front.h"

/* The GPU behind an ordinal, by its UUID. NULL: it has no valid share in this container. */
struct ap_gpu *ap_gpu_of_device(struct ap_process *process, CUdevice device);

#endif
