/* Each device's primary context: the driver counts its users, and makes and ends it. */
#include "charge.h"
#include "context.h"
#include "deferred.h"
#include "device.h"
#include "gate.h"

#define AT_ONCE 32

typedef CUresult (*device_function)(CUdevice);

struct ap_primary *ap_primary_of(struct ap_process *process, CUdevice device)
{
    bool counted = process && device >= 0 && (unsigned)device < AP_ORDINAL_MAX;
    return counted ? &process->primary[device] : NULL;
}

void ap_primary_began(struct ap_primary *primary, const struct ap_growth *growth,
                      CUcontext context)
{
    primary->context = ap_number_of(context);
    primary->cost = growth->took;
    primary->gpu = growth->gpu;
}

static CUresult driver_release(CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    if (real->cuDevicePrimaryCtxRelease_v2)
        return real->cuDevicePrimaryCtxRelease_v2(device);
    return real->cuDevicePrimaryCtxRelease(device);
}

/* The first retain makes the context. */
static CUresult retain(struct ap_primary *primary, CUcontext *context, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUcontext given = NULL;
    CUresult result = ap_context_begin(&growth, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuDevicePrimaryCtxRetain(&given, device);
    if (result != CUDA_SUCCESS) {
        ap_growth_cancel(&growth);
        return result;
    }
    if (ap_growth_settle(&growth)) {
        ap_primary_began(primary, &growth, given);
        *context = given;
        return CUDA_SUCCESS;
    }
    (void)driver_release(device);
    ap_growth_undone(&growth);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    struct ap_primary *primary = ap_primary_of(ap_process(), device);
    if (!real->cuDevicePrimaryCtxRetain || !real->cuDevicePrimaryCtxRelease)
        return CUDA_ERROR_NOT_FOUND;
    if (!context || !ap_is_device(device))
        return real->cuDevicePrimaryCtxRetain(context, device);
    if (!primary)
        return CUDA_ERROR_OUT_OF_MEMORY;
    ap_lock(&primary->lock);
    CUresult result = primary->gpu ? real->cuDevicePrimaryCtxRetain(context, device)
                                   : retain(primary, context, device);
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

/* Allocations under a green context belong to the primary one, and end with it. */
static void drop_greens(struct ap_process *process, uint64_t primary)
{
    struct ap_record greens[AT_ONCE];
    size_t count;
    while ((count = ap_table_take_context(&process->contexts, primary, greens, AT_ONCE)) > 0)
        for (size_t i = 0; i < count; i++) {
            ap_gate_context_ended(process, greens[i].key);
            ap_charge_drop_context(process, greens[i].key);
            ap_deferred_context_ended(process, greens[i].key);
        }
}

bool ap_primary_has_ended(struct ap_process *process, struct ap_primary *primary, CUdevice device)
{
    struct ap_gpu *gpu = primary->gpu;
    if (!gpu || is_active(device))
        return false;
    ap_gate_context_ended(process, primary->context);
    ap_charge_drop_context(process, primary->context);
    ap_deferred_context_ended(process, primary->context);
    drop_greens(process, primary->context);
    primary->gpu = NULL;
    ap_truth_context_ended(process, gpu, primary->context, primary->cost);
    return true;
}

/* A release ends the context when it was the last; a reset does so at once. Only a retain or a
 * green context brings it back, and those wait for our lock. */
static CUresult end_primary(device_function driver, CUdevice device)
{
    struct ap_process *process = ap_process();
    struct ap_primary *primary = ap_primary_of(process, device);
    if (!driver)
        return CUDA_ERROR_NOT_FOUND;
    if (!primary)
        return driver(device);
    ap_lock(&primary->lock);
    ap_gate_before_end(process);
    CUresult result = driver(device);
    if (result == CUDA_SUCCESS)
        (void)ap_primary_has_ended(process, primary, device);
    ap_gate_after_end(process);
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
