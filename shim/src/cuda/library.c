/* Libraries (CUDA 12): loaded for all contexts of the process, on all its GPUs. With lazy loading,
 * the default, nothing is taken before something of the library is used; see code.c. */
#include "context.h"
#include "device.h"

struct growths {
    unsigned count;
    struct ap_growth of[AP_GPU_MAX];
};

/* Whether a share of a GPU that this process uses is over its limit by more than a block: less than
 * that is no more than a call's rounding. */
static bool is_over(void)
{
    struct ap_process *process = ap_process();
    unsigned count = process ? atomic_load(&process->gpu_count) : 0;
    for (unsigned i = 0; i < count; i++) {
        struct ap_gpu *gpu = &process->gpus[i];
        if (atomic_load(&gpu->overhead.contexts) == 0 || !ap_gpu_is_over(process, gpu, AP_BLOCK))
            continue;
        /* What was over may have been freed since. */
        ap_truth_refresh(process, gpu, 0);
        if (!ap_gpu_is_over(process, gpu, AP_BLOCK))
            continue;
        ap_gpu_count_denied(gpu);
        return true;
    }
    return false;
}

/* Something that is loaded when it is first used in a context. Programs ask for the same kernels
 * again and again (PyTorch at every launch), so what was loaded once is remembered, and costs no
 * look at the driver's accounts any more. */
struct use {
    struct ap_process *process;
    uint64_t key, unloads;
    bool loaded;
};

/* CUDA_SUCCESS: go on, and end with `finish_use`. Else the error to return. */
static CUresult begin_use(struct use *use, const void *handle)
{
    CUcontext context = NULL;
    struct ap_record known;
    struct ap_process *process = ap_process();
    *use = (struct use){.process = process};
    if (process && real_cuda()->cuCtxGetCurrent &&
        real_cuda()->cuCtxGetCurrent(&context) == CUDA_SUCCESS && context) {
        use->key = ap_number_of(handle) * UINT64_C(0x9e3779b97f4a7c15) ^ ap_number_of(context);
        use->unloads = atomic_load(&process->unloads);
        use->loaded = ap_table_get(&process->loaded, use->key, &known) &&
                      known.bytes == use->unloads;
    }
    return !use->loaded && is_over() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult finish_use(const struct use *use, CUresult result)
{
    struct ap_record record = {.key = use->key, .bytes = use->unloads}, old;
    bool had_old = false;
    if (result != CUDA_SUCCESS || use->loaded)
        return result;
    ap_truth_all_changed();
    if (is_over())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (use->key) /* without memory to note it, it is looked at again */
        (void)ap_table_put(&use->process->loaded, &record, &old, &had_old);
    return CUDA_SUCCESS;
}

static void begin(struct growths *growths)
{
    struct ap_process *process = ap_process();
    unsigned count = process ? atomic_load(&process->gpu_count) : 0;
    growths->count = 0;
    for (unsigned i = 0; i < count; i++)
        if (ap_growth_begin(&growths->of[growths->count], process, &process->gpus[i], 0) ==
            CUDA_SUCCESS)
            growths->count++;
}

static CUresult finish(struct growths *growths, CUresult result, CUlibrary given,
                       CUlibrary *library)
{
    bool fits[AP_GPU_MAX], all = true;
    for (unsigned i = 0; result == CUDA_SUCCESS && i < growths->count; i++)
        all = (fits[i] = ap_growth_settle(&growths->of[i])) && all;
    if (result != CUDA_SUCCESS)
        return result;
    if (all) {
        *library = given;
        return CUDA_SUCCESS;
    }
    (void)real_cuda()->cuLibraryUnload(given);
    for (unsigned i = 0; i < growths->count; i++) {
        if (!fits[i])
            ap_growth_undone(&growths->of[i]);
        else
            ap_truth_shrunk(growths->of[i].process, growths->of[i].gpu, growths->of[i].took);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *options, void **values,
                           unsigned int count, int *library_options, void **library_values,
                           unsigned int library_count)
{
    const struct real_cuda *real = real_cuda();
    struct growths growths;
    CUlibrary given = NULL;
    if (!real->cuLibraryLoadData || !real->cuLibraryUnload)
        return CUDA_ERROR_NOT_FOUND;
    if (!library)
        return real->cuLibraryLoadData(library, code, options, values, count, library_options,
                                       library_values, library_count);
    ap_truth_all_changed();
    if (is_over())
        return CUDA_ERROR_OUT_OF_MEMORY;
    begin(&growths);
    CUresult result = real->cuLibraryLoadData(&given, code, options, values, count,
                                              library_options, library_values, library_count);
    return finish(&growths, result, given, library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file, int *options, void **values,
                               unsigned int count, int *library_options, void **library_values,
                               unsigned int library_count)
{
    const struct real_cuda *real = real_cuda();
    struct growths growths;
    CUlibrary given = NULL;
    if (!real->cuLibraryLoadFromFile || !real->cuLibraryUnload)
        return CUDA_ERROR_NOT_FOUND;
    if (!library)
        return real->cuLibraryLoadFromFile(library, file, options, values, count, library_options,
                                           library_values, library_count);
    ap_truth_all_changed();
    if (is_over())
        return CUDA_ERROR_OUT_OF_MEMORY;
    begin(&growths);
    CUresult result = real->cuLibraryLoadFromFile(&given, file, options, values, count,
                                                  library_options, library_values, library_count);
    return finish(&growths, result, given, library);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuLibraryUnload)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuLibraryUnload(library);
    struct ap_process *process = ap_process();
    if (process && result == CUDA_SUCCESS) {
        atomic_fetch_add(&process->unloads, 1);
        ap_truth_all_changed();
    }
    return result;
}

/* The calls below make the driver load what it has put off, the whole library with its variables.
 * How much that is shows only afterwards, and there is no way back from it. So it is charged, over
 * the limit if need be, and refused all the same; and once a share is over its limit by more than
 * a block nothing of any library is loaded any more. A launch that loads by itself is not watched:
 * what it took is found by the next of our calls. */

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    const struct real_cuda *real = real_cuda();
    CUmodule given = NULL;
    struct use use;
    if (!real->cuLibraryGetModule)
        return CUDA_ERROR_NOT_FOUND;
    if (!module)
        return real->cuLibraryGetModule(module, library);
    CUresult result = begin_use(&use, library);
    if (result == CUDA_SUCCESS)
        result = finish_use(&use, real->cuLibraryGetModule(&given, library));
    if (result == CUDA_SUCCESS)
        *module = given;
    return result;
}

typedef CUresult (*variable_function)(CUdeviceptr *, size_t *, CUlibrary, const char *);

static CUresult variable(variable_function driver, CUdeviceptr *pointer, size_t *bytes,
                         CUlibrary library, const char *name)
{
    CUdeviceptr given = 0;
    size_t given_bytes = 0;
    struct use use;
    if (!driver)
        return CUDA_ERROR_NOT_FOUND;
    if (!pointer && !bytes)
        return driver(pointer, bytes, library, name);
    CUresult result = begin_use(&use, library);
    if (result == CUDA_SUCCESS)
        result = finish_use(&use, driver(&given, &given_bytes, library, name));
    if (result == CUDA_SUCCESS && pointer)
        *pointer = given;
    if (result == CUDA_SUCCESS && bytes)
        *bytes = given_bytes;
    return result;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                            const char *name)
{
    return variable(real_cuda()->cuLibraryGetGlobal, pointer, bytes, library, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                             const char *name)
{
    return variable(real_cuda()->cuLibraryGetManaged, pointer, bytes, library, name);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    const struct real_cuda *real = real_cuda();
    CUfunction given = NULL;
    struct use use;
    if (!real->cuKernelGetFunction)
        return CUDA_ERROR_NOT_FOUND;
    if (!function)
        return real->cuKernelGetFunction(function, kernel);
    CUresult result = begin_use(&use, kernel);
    if (result == CUDA_SUCCESS)
        result = finish_use(&use, real->cuKernelGetFunction(&given, kernel));
    if (result == CUDA_SUCCESS)
        *function = given;
    return result;
}

CUresult cuFuncLoad(CUfunction function)
{
    const struct real_cuda *real = real_cuda();
    struct use use;
    if (!real->cuFuncLoad)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = begin_use(&use, function);
    return result == CUDA_SUCCESS ? finish_use(&use, real->cuFuncLoad(function)) : result;
}
