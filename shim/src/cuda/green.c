/* Green contexts (CUDA 12.4): parts of a GPU's multiprocessors. Each holds the primary context and
 * takes a little besides (4 MiB on an H200). What is allocated under one belongs to the primary
 * context (measured): it outlives the green one, and ends with the primary.
 *
 * In the table of contexts, a green context's record has its device as `kind` and the number of the
 * CUcontext made of it as `context`; that CUcontext has a record too, with the primary's number. */
#include "charge.h"
#include "context.h"
#include "deferred.h"
#include "device.h"
#include "gate.h"

static void put(struct ap_process *process, const struct ap_record *record)
{
    struct ap_record old;
    bool had_old = false;
    /* Without memory for it the charge stays until the primary context ends. */
    (void)ap_table_put(&process->contexts, record, &old, &had_old);
}

/* The driver's handle of a primary context that is there. */
static CUcontext primary_handle(CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    if (!real->cuDevicePrimaryCtxRetain || !real->cuDevicePrimaryCtxRelease ||
        real->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return NULL;
    (void)real->cuDevicePrimaryCtxRelease(device);
    return context;
}

/* With the primary's lock. The first one makes the primary context too. */
static CUresult create(struct ap_process *process, struct ap_primary *primary, CUgreenCtx *green,
                       CUdevResourceDesc description, CUdevice device, unsigned int flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUgreenCtx given = NULL;
    bool alone = !primary->gpu;
    CUresult result = alone ? ap_context_begin(&growth, device)
                            : ap_growth_begin(&growth, process, primary->gpu, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuGreenCtxCreate(&given, description, device, flags);
    if (result != CUDA_SUCCESS) {
        ap_growth_cancel(&growth);
        return result;
    }
    if (!ap_growth_settle(&growth)) {
        (void)real->cuGreenCtxDestroy(given);
        ap_growth_undone(&growth);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (alone)
        ap_primary_began(primary, &growth, primary_handle(device));
    struct ap_record record = {.key = ap_number_of(given),
                               .bytes = alone ? 0 : growth.took,
                               .gpu = (uint16_t)growth.gpu->index,
                               .kind = (uint16_t)device};
    put(process, &record);
    *green = given;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device,
                          unsigned int flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    struct ap_primary *primary = ap_primary_of(process, device);
    if (!real->cuGreenCtxCreate || !real->cuGreenCtxDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!green || !ap_is_device(device))
        return real->cuGreenCtxCreate(green, description, device, flags);
    if (!primary)
        return CUDA_ERROR_OUT_OF_MEMORY;
    ap_lock(&primary->lock);
    CUresult result = create(process, primary, green, description, device, flags);
    ap_unlock(&primary->lock);
    return result;
}

/* With the primary's lock. What was allocated under it is the primary's from here on. */
static CUresult destroy(struct ap_process *process, struct ap_primary *primary,
                        const struct ap_record *record, CUgreenCtx green)
{
    struct ap_record context;
    CUresult result = real_cuda()->cuGreenCtxDestroy(green);
    if (result != CUDA_SUCCESS) {
        put(process, record);
        return result;
    }
    if (record->context && ap_table_take(&process->contexts, record->context, &context)) {
        ap_gate_context_ended(process, context.key);
        ap_table_retag(&process->pointers, context.key, context.context);
        ap_deferred_retag(process, context.key, context.context);
    }
    if (!ap_primary_has_ended(process, primary, record->kind))
        ap_truth_shrunk(process, &process->gpus[record->gpu], record->bytes);
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    struct ap_record record;
    if (!real->cuGreenCtxDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !ap_table_take(&process->contexts, ap_number_of(green), &record))
        return real->cuGreenCtxDestroy(green);
    struct ap_primary *primary = ap_primary_of(process, record.kind);
    ap_lock(&primary->lock);
    ap_gate_before_end(process);
    CUresult result = destroy(process, primary, &record, green);
    ap_gate_after_end(process);
    ap_unlock(&primary->lock);
    return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    struct ap_record record;
    if (!real->cuCtxFromGreenCtx)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuCtxFromGreenCtx(context, green);
    if (result != CUDA_SUCCESS || !process ||
        !ap_table_take(&process->contexts, ap_number_of(green), &record))
        return result;
    struct ap_record made = {.key = ap_number_of(*context),
                             .context = process->primary[record.kind].context,
                             .gpu = record.gpu};
    record.context = made.key;
    put(process, &record);
    put(process, &made);
    return result;
}
