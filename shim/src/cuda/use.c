#include "use.h"

#include <stdatomic.h>

#include "device.h"

bool ap_use_is_over(struct ap_process *process, struct ap_gpu *gpu)
{
    if (atomic_load(&gpu->overhead.contexts) == 0 || !ap_gpu_is_over(process, gpu, AP_BLOCK))
        return false;
    /* What was over may have been freed since. */
    ap_truth_refresh(process, gpu, 0);
    if (!ap_gpu_is_over(process, gpu, AP_BLOCK))
        return false;
    ap_gpu_count_denied(gpu);
    return true;
}

/* FNV-1a; two names that fall together only spare one look. */
static uint64_t number_of_name(const char *name)
{
    uint64_t number = UINT64_C(0xcbf29ce484222325);
    for (; name && *name; name++)
        number = (number ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return number;
}

static uint64_t key_of(const void *handle, const char *name, const struct CUctx_st *context)
{
    uint64_t key = ap_number_of(handle) * UINT64_C(0x9e3779b97f4a7c15);
    return (key ^ number_of_name(name)) * UINT64_C(0x9e3779b97f4a7c15) ^ ap_number_of(context);
}

CUresult ap_use_begin(struct ap_use *use, const void *handle, const char *name)
{
    CUcontext context = NULL;
    struct ap_record known;
    struct ap_process *process = ap_process();
    *use = (struct ap_use){.process = process};
    if (!process || !real_cuda()->cuCtxGetCurrent ||
        real_cuda()->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return CUDA_SUCCESS; /* the driver has its own error for that */
    use->key = key_of(handle, name, context);
    use->unloads = atomic_load(&process->unloads);
    use->loaded =
        ap_table_get(&process->loaded, use->key, &known) && known.bytes == use->unloads;
    if (use->loaded)
        return CUDA_SUCCESS;
    use->gpu = ap_gpu_of_current(process);
    if (use->gpu && ap_use_is_over(process, use->gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    use->before = use->gpu ? atomic_load(&use->gpu->overhead.bytes) : 0;
    return CUDA_SUCCESS;
}

/* A neighbour's excess is no reason to refuse what took nothing. */
CUresult ap_use_finish(const struct ap_use *use, CUresult result)
{
    struct ap_record record = {.key = use->key, .bytes = use->unloads}, old;
    bool had_old = false;
    if (result != CUDA_SUCCESS || use->loaded || !use->gpu)
        return result;
    ap_truth_refresh(use->process, use->gpu, 0);
    if (atomic_load(&use->gpu->overhead.bytes) > use->before &&
        ap_use_is_over(use->process, use->gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (use->key) /* without memory to note it, it is looked at again */
        (void)ap_table_put(&use->process->loaded, &record, &old, &had_old);
    return CUDA_SUCCESS;
}
