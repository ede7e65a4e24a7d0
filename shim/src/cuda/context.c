/* The end of contexts: with one go all its allocations, and so must their charges. What contexts
 * themselves cost is not charged yet. */
#include <stdatomic.h>

#include "charge.h"

typedef CUresult (*destroy_function)(CUcontext);
typedef CUresult (*device_function)(CUdevice);

static uint64_t number_of(CUcontext context)
{
    return (uint64_t)(uintptr_t)context;
}

/* The driver may give the handle to a new context before we are back from its call. So the records
 * are moved to a number that no handle has (handles are even) first, and back if it refuses. */
static CUresult destroy(destroy_function driver, CUcontext context)
{
    struct ap_process *process = ap_process();
    if (!driver)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !context)
        return driver(context);
    uint64_t ended = atomic_fetch_add(&process->contexts_ended, 1) * 2 + 1;
    ap_table_retag(&process->pointers, number_of(context), ended);
    CUresult result = driver(context);
    if (result == CUDA_SUCCESS)
        ap_charge_drop_context(process, ended);
    else
        ap_table_retag(&process->pointers, ended, number_of(context));
    return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
    return destroy(real_cuda()->cuCtxDestroy, context);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    return destroy(real_cuda()->cuCtxDestroy_v2, context);
}

static struct ap_primary *primary_of(struct ap_process *process, CUdevice device)
{
    bool counted = process && device >= 0 && (unsigned)device < AP_ORDINAL_MAX;
    return counted ? &process->primary[device] : NULL;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    struct ap_primary *primary = primary_of(ap_process(), device);
    if (!real->cuDevicePrimaryCtxRetain)
        return CUDA_ERROR_NOT_FOUND;
    if (!primary || !context)
        return real->cuDevicePrimaryCtxRetain(context, device);
    ap_lock(&primary->lock);
    CUresult result = real->cuDevicePrimaryCtxRetain(context, device);
    if (result == CUDA_SUCCESS)
        primary->context = number_of(*context);
    ap_unlock(&primary->lock);
    return result;
}

static bool is_active(CUdevice device)
{
    unsigned int flags = 0;
    int active = 1;
    const struct real_cuda *real = real_cuda();
    if (!real->cuDevicePrimaryCtxGetState ||
        real->cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS)
        return true; /* rather a charge too much */
    return active != 0;
}

/* A release ends the context when it was the last; a reset does so at once. Only a retain brings
 * it back, and that waits for our lock. */
static CUresult end_primary(device_function driver, CUdevice device)
{
    struct ap_process *process = ap_process();
    struct ap_primary *primary = primary_of(process, device);
    if (!driver)
        return CUDA_ERROR_NOT_FOUND;
    if (!primary)
        return driver(device);
    ap_lock(&primary->lock);
    CUresult result = driver(device);
    if (result == CUDA_SUCCESS && primary->context && !is_active(device))
        ap_charge_drop_context(process, primary->context);
    ap_unlock(&primary->lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return end_primary(real_cuda()->cuDevicePrimaryCtxRelease, device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return end_primary(real_cuda()->cuDevicePrimaryCtxRelease_v2, device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return end_primary(real_cuda()->cuDevicePrimaryCtxReset, device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return end_primary(real_cuda()->cuDevicePrimaryCtxReset_v2, device);
}
