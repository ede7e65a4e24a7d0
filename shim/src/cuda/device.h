/* From CUDA's devices to this process's GPU records. */
#ifndef AP_CUDA_DEVICE_H
#define AP_CUDA_DEVICE_H

#include "../common/process.h"
#include "front.h"

/* The GPU behind an ordinal, by its UUID. NULL: it has no valid share in this container. */
struct ap_gpu *ap_gpu_of_device(struct ap_process *process, CUdevice device);

/* The GPU of the current context. NULL: there is none, or it has no share. */
struct ap_gpu *ap_gpu_of_current(struct ap_process *process);

/* Compute capability of this process's devices, 75 for 7.5. 0: they differ, or are not known. */
unsigned ap_architecture(void);

/* Whether CUDA has a device of this ordinal. */
bool ap_is_device(CUdevice device);

#endif
