/* Streams take device memory (140 MiB for 256 of them on an H200), which stays with their context
 * when they are destroyed, for the next ones. */
#include "context.h"

static CUresult finish(struct ap_growth *growth, CUresult result, CUstream given, CUstream *stream)
{
    const struct real_cuda *real = real_cuda();
    if (result != CUDA_SUCCESS) {
        ap_growth_cancel(growth);
        return result;
    }
    if (ap_growth_settle(growth)) {
        *stream = given;
        return CUDA_SUCCESS;
    }
    (void)(real->cuStreamDestroy_v2 ? real->cuStreamDestroy_v2(given)
                                    : real->cuStreamDestroy(given));
    ap_growth_undone(growth);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUstream given = NULL;
    if (!real->cuStreamCreate || !real->cuStreamDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!stream || !ap_growth_begin_here(&growth))
        return real->cuStreamCreate(stream, flags);
    CUresult result = real->cuStreamCreate(&given, flags);
    return finish(&growth, result, given, stream);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUstream given = NULL;
    if (!real->cuStreamCreateWithPriority || !real->cuStreamDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!stream || !ap_growth_begin_here(&growth))
        return real->cuStreamCreateWithPriority(stream, flags, priority);
    CUresult result = real->cuStreamCreateWithPriority(&given, flags, priority);
    return finish(&growth, result, given, stream);
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags,
                                int priority)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    struct ap_growth growth;
    struct ap_record record;
    CUstream given = NULL;
    if (!real->cuGreenCtxStreamCreate || !real->cuStreamDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!stream || !process || !ap_table_get(&process->contexts, ap_number_of(green), &record) ||
        ap_growth_begin(&growth, process, &process->gpus[record.gpu], 0) != CUDA_SUCCESS)
        return real->cuGreenCtxStreamCreate(stream, green, flags, priority);
    CUresult result = real->cuGreenCtxStreamCreate(&given, green, flags, priority);
    return finish(&growth, result, given, stream);
}
