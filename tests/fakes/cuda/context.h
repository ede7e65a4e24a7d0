#ifndef FAKE_CUDA_CONTEXT_H
#define FAKE_CUDA_CONTEXT_H

#include "cuda.h"

/* All with the lock held. A new context, not yet usable; NULL without memory. */
CUcontext cu_new_context(CUdevice device, bool primary);

/* Pays for the context and lets it be used. */
CUresult cu_activate(CUcontext ctx);

enum { CU_STACK = 1024, CU_HEAP = 8 << 20 };

/* One more or one less user of a device's primary context. */
CUresult cu_primary_retain(CUcontext *out, CUdevice device);
CUresult cu_primary_release(CUdevice device);

/* Gives back all that the context holds, and its own price; does nothing the second time. */
void cu_deactivate(CUcontext ctx);

#endif
