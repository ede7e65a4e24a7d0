/* Libraries (CUDA 12): loaded for all contexts of the process, on all its GPUs. With lazy loading,
 * the default, nothing is taken before something of the library is used; see code.c. */
#include "context.h"
#include "device.h"

struct growths {
    unsigned count;
    struct ap_growth of[AP_GPU_MAX];
};

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
    if (result == CUDA_SUCCESS)
        ap_truth_all_changed();
    return result;
}

/* The calls below make the driver load what it has put off. There is no way back from that, so it
 * is charged, over the limit if need be, and the next call that wants memory is refused. */

static CUresult used(CUresult result)
{
    if (result == CUDA_SUCCESS)
        ap_truth_all_changed();
    return result;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    const struct real_cuda *real = real_cuda();
    return real->cuLibraryGetModule ? used(real->cuLibraryGetModule(module, library))
                                    : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                            const char *name)
{
    const struct real_cuda *real = real_cuda();
    return real->cuLibraryGetGlobal ? used(real->cuLibraryGetGlobal(pointer, bytes, library, name))
                                    : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                             const char *name)
{
    const struct real_cuda *real = real_cuda();
    return real->cuLibraryGetManaged
               ? used(real->cuLibraryGetManaged(pointer, bytes, library, name))
               : CUDA_ERROR_NOT_FOUND;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    const struct real_cuda *real = real_cuda();
    return real->cuKernelGetFunction ? used(real->cuKernelGetFunction(function, kernel))
                                     : CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncLoad(CUfunction function)
{
    const struct real_cuda *real = real_cuda();
    return real->cuFuncLoad ? used(real->cuFuncLoad(function)) : CUDA_ERROR_NOT_FOUND;
}
