/* What the files on contexts share. */
#ifndef AP_CUDA_CONTEXT_H
#define AP_CUDA_CONTEXT_H

#include "truth.h"

static inline uint64_t ap_number_of(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

/* Begins what makes a context on this device. CUDA_SUCCESS, or the error to return. */
CUresult ap_context_begin(struct ap_growth *growth, CUdevice device);

/* Begins what takes memory, no telling how much, in the current context. False: there is none, and
 * the driver has its own error for that. */
bool ap_growth_begin_here(struct ap_growth *growth);

/* The record of this process's primary context on a device; NULL: none is kept. */
struct ap_primary *ap_primary_of(struct ap_process *process, CUdevice device);

/* The primary context began, in the call of `growth`. The caller holds its lock. */
void ap_primary_began(struct ap_primary *primary, const struct ap_growth *growth,
                      CUcontext context);

/* If the driver ended the primary context, all that was charged for it goes, and true is returned.
 * The caller holds its lock, and is between ap_gate_before_end and ap_gate_after_end. */
bool ap_primary_has_ended(struct ap_process *process, struct ap_primary *primary, CUdevice device);

#endif
