#ifndef FAKE_CUDA_CONTEXT_H
#define FAKE_CUDA_CONTEXT_H

#include "cuda.h"

/* All with the lock held. A new context, not yet usable; NULL without memory. */
CUcontext cu_new_context(CUdevice device, bool primary);

/* Pays for the context and lets it be used. */
CUresult cu_activate(CUcontext ctx);

/* Gives back all that the context holds, and its own price; does nothing the second time. */
void cu_deactivate(CUcontext ctx);

#endif
