/* Contexts that a program makes itself: what they cost, and their end. With a context go all its
 * allocations, and so must their charges. */
#include "context.h"

#include <stdatomic.h>

#include "charge.h"
#include "deferred.h"
#include "device.h"
#include "gate.h"
#include "mps.h"

typedef CUresult (*destroy_function)(CUcontext);

CUresult ap_context_begin(struct ap_growth *growth, CUdevice device)
{
    struct ap_process *process = ap_process();
    struct ap_gpu *gpu = process ? ap_gpu_of_device(process, device) : NULL;
    if (!gpu)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ap_mps_permit(gpu, device);
    return result == CUDA_SUCCESS ? ap_growth_begin_context(growth, process, gpu) : result;
}

bool ap_growth_begin_here(struct ap_growth *growth)
{
    struct ap_process *process = ap_process();
    struct ap_gpu *gpu = process ? ap_gpu_of_current(process) : NULL;
    return gpu && ap_growth_begin(growth, process, gpu, 0) == CUDA_SUCCESS;
}

static bool note(const struct ap_growth *growth, CUcontext context)
{
    struct ap_record record = {.key = ap_number_of(context),
                               .bytes = growth->took,
                               .count = 1,
                               .gpu = (uint16_t)growth->gpu->index}, old;
    bool had_old = false;
    return ap_table_put(&growth->process->contexts, &record, &old, &had_old);
}

static CUresult driver_destroy(CUcontext context)
{
    const struct real_cuda *real = real_cuda();
    return real->cuCtxDestroy_v2 ? real->cuCtxDestroy_v2(context) : real->cuCtxDestroy(context);
}

/* Destroying it makes the context current again that was so before. */
static CUresult finish(struct ap_growth *growth, CUresult result, CUcontext given,
                       CUcontext *context)
{
    if (result != CUDA_SUCCESS) {
        ap_growth_cancel(growth);
        return result;
    }
    if (ap_growth_settle(growth) && note(growth, given)) {
        *context = given;
        return CUDA_SUCCESS;
    }
    (void)driver_destroy(given);
    ap_growth_undone(growth);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* What the driver refuses anyway goes to it unchanged, for its own error. */
static bool is_sound(CUcontext *context, CUdevice device)
{
    return context && ap_is_device(device);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int affinities, unsigned int flags,
                        CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUcontext given = NULL;
    if (!real->cuCtxCreate_v3 || !real->cuCtxDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!is_sound(context, device))
        return real->cuCtxCreate_v3(context, affinity, affinities, flags, device);
    CUresult result = ap_context_begin(&growth, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuCtxCreate_v3(&given, affinity, affinities, flags, device);
    return finish(&growth, result, given, context);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUcontext given = NULL;
    if (!real->cuCtxCreate_v4 || !real->cuCtxDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!is_sound(context, device))
        return real->cuCtxCreate_v4(context, parameters, flags, device);
    CUresult result = ap_context_begin(&growth, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuCtxCreate_v4(&given, parameters, flags, device);
    return finish(&growth, result, given, context);
}

typedef CUresult (*plain_function)(CUcontext *, unsigned int, CUdevice);
typedef CUresult (*video_function)(CUcontext *, unsigned int, CUdevice, unsigned int, void *);

static CUresult create_plain(plain_function driver, CUcontext *context, unsigned int flags,
                             CUdevice device)
{
    struct ap_growth growth;
    CUcontext given = NULL;
    if (!driver || !real_cuda()->cuCtxDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!is_sound(context, device))
        return driver(context, flags, device);
    CUresult result = ap_context_begin(&growth, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver(&given, flags, device);
    return finish(&growth, result, given, context);
}

static CUresult create_video(video_function driver, CUcontext *context, unsigned int flags,
                             CUdevice device, unsigned int display, void *ask)
{
    struct ap_growth growth;
    CUcontext given = NULL;
    if (!driver || !real_cuda()->cuCtxDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!is_sound(context, device))
        return driver(context, flags, device, display, ask);
    CUresult result = ap_context_begin(&growth, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver(&given, flags, device, display, ask);
    return finish(&growth, result, given, context);
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    return create_plain(real_cuda()->cuCtxCreate, context, flags, device);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    return create_plain(real_cuda()->cuCtxCreate_v2, context, flags, device);
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    return create_plain(real_cuda()->cuGLCtxCreate, context, flags, device);
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    return create_plain(real_cuda()->cuGLCtxCreate_v2, context, flags, device);
}

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device,
                          unsigned int display, void *ask)
{
    return create_video(real_cuda()->cuVDPAUCtxCreate, context, flags, device, display, ask);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device,
                             unsigned int display, void *ask)
{
    return create_video(real_cuda()->cuVDPAUCtxCreate_v2, context, flags, device, display, ask);
}

static void put_back(struct ap_process *process, const struct ap_record *record)
{
    struct ap_record old;
    bool had_old = false;
    (void)ap_table_put(&process->contexts, record, &old, &had_old);
}

/* The driver may give the handle to a new context before we are back from its call. So the records
 * are moved to a number that no handle has (handles are even) first, and back if it refuses. */
static CUresult destroy(destroy_function driver, CUcontext context)
{
    struct ap_process *process = ap_process();
    struct ap_record record;
    if (!driver)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !context)
        return driver(context);
    uint64_t number = ap_number_of(context);
    uint64_t ended = atomic_fetch_add(&process->contexts_ended, 1) * 2 + 1;
    bool known = ap_table_take(&process->contexts, number, &record);
    ap_table_retag(&process->pointers, number, ended);
    ap_deferred_retag(process, number, ended);
    ap_gate_before_end(process);
    CUresult result = driver(context);
    if (result == CUDA_SUCCESS)
        ap_gate_context_ended(process, number);
    ap_gate_after_end(process);
    if (result != CUDA_SUCCESS) {
        ap_table_retag(&process->pointers, ended, number);
        ap_deferred_retag(process, ended, number);
        if (known)
            put_back(process, &record);
        return result;
    }
    ap_charge_drop_context(process, ended);
    ap_deferred_context_ended(process, ended);
    if (known)
        ap_truth_context_ended(process, &process->gpus[record.gpu], number, record.bytes);
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

/* Uses are counted, as the driver counts them: the last detach destroys. */
CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuCtxAttach)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuCtxAttach(context, flags);
    if (result == CUDA_SUCCESS && context && process)
        (void)ap_table_ref_known(&process->contexts, ap_number_of(*context));
    return result;
}

CUresult cuCtxDetach(CUcontext context)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    struct ap_record last;
    if (!real->cuCtxDetach)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !ap_table_unref(&process->contexts, ap_number_of(context), &last)) {
        CUresult result = real->cuCtxDetach(context);
        if (result != CUDA_SUCCESS && process)
            (void)ap_table_ref_known(&process->contexts, ap_number_of(context));
        return result;
    }
    last.count = 1;
    put_back(process, &last);
    return destroy(real->cuCtxDetach, context);
}
