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

static uint64_t mixed(uint64_t number)
{
    return number * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t key_of(const void *handle, const char *name, const struct CUctx_st *context)
{
    return mixed(mixed(ap_number_of(handle)) ^ number_of_name(name)) ^ ap_number_of(context);
}

void ap_use_note(struct ap_process *process, CUlibrary library, uint64_t bytes)
{
    struct ap_record record = {.key = ap_number_of(library), .bytes = bytes}, old;
    bool had_old = false;
    if (bytes == 0)
        return;
    record.count = atomic_fetch_add(&process->library_count, 1) + 1;
    (void)ap_table_put(&process->libraries, &record, &old, &had_old);
}

void ap_use_forget(struct ap_process *process, CUlibrary library)
{
    struct ap_record record;
    (void)ap_table_take(&process->libraries, ap_number_of(library), &record);
}

/* A green context is loaded for by the primary one that it belongs to. */
static uint64_t loads_in(struct ap_process *process, CUcontext context)
{
    struct ap_record record;
    bool green = ap_table_get(&process->contexts, ap_number_of(context), &record) && record.context;
    return green ? record.context : ap_number_of(context);
}

static CUresult expect_variables(struct ap_use *use, CUlibrary library)
{
    struct ap_process *process = use->process;
    struct ap_record variables, known;
    if (!use->gpu || !ap_table_get(&process->libraries, ap_number_of(library), &variables))
        return CUDA_SUCCESS;
    /* By the library's number in sequence, since its handle may be another one's later. */
    uint64_t context = loads_in(process, use->context);
    struct ap_record brings = {.key = mixed(mixed(variables.count) ^ context), .context = context};
    if (ap_table_get(&process->brought, brings.key, &known))
        return CUDA_SUCCESS;
    use->brings = brings;
    return ap_growth_begin(&use->growth, process, use->gpu, variables.bytes);
}

static void settle_variables(struct ap_use *use, CUresult result)
{
    struct ap_record old;
    bool had_old = false;
    if (result != CUDA_SUCCESS) {
        ap_growth_cancel(&use->growth);
        return;
    }
    (void)ap_growth_settle(&use->growth);
    if (!use->growth.told)
        ap_truth_shrunk(use->process, use->gpu, use->growth.took);
    (void)ap_table_put(&use->process->brought, &use->brings, &old, &had_old);
}

CUresult ap_use_begin_library(struct ap_use *use, CUlibrary library)
{
    CUresult result = ap_use_begin(use, library, NULL);
    return result == CUDA_SUCCESS ? expect_variables(use, library) : result;
}

CUresult ap_use_begin_kernel(struct ap_use *use, CUkernel kernel)
{
    CUlibrary library = NULL;
    const struct real_cuda *real = real_cuda();
    CUresult result = ap_use_begin(use, kernel, NULL);
    if (result != CUDA_SUCCESS || !use->gpu || atomic_load(&use->process->library_count) == 0 ||
        !real->cuKernelGetLibrary || real->cuKernelGetLibrary(&library, kernel) != CUDA_SUCCESS)
        return result;
    return expect_variables(use, library);
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
    use->context = context;
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
CUresult ap_use_finish(struct ap_use *use, CUresult result)
{
    struct ap_record record = {.key = use->key, .bytes = use->unloads}, old;
    bool had_old = false;
    if (use->brings.key)
        settle_variables(use, result);
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
