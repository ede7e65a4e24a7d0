/* Cores by MPS: this process becomes a client of its GPU's daemon, with its share of the cores.
 *
 * The driver reads what it has to know from the environment, in cuInit. So just before that, what
 * the limits say is put there, in the place of all CUDA_MPS_* variables that the program was
 * started with. Whether the driver did become a client it tells by an attribute of the device; no
 * context is made where it did not, since that would run without any limit. */
#ifndef AP_CUDA_MPS_H
#define AP_CUDA_MPS_H

#include "../common/process.h"
#include "front.h"

/* CUDA_SUCCESS: a context may be made on this device; else the error to return. */
CUresult ap_mps_permit(const struct ap_gpu *gpu, CUdevice device);

#endif
