/* Libraries (CUDA 12): loaded for all contexts of the process, on all its GPUs. With lazy loading,
 * the default, nothing is taken before something of the library is used; see code.c. */
#include "use.h"

#include <stdatomic.h>

#include "device.h"
#include "image.h"

enum { EAGER = 1 };

struct growths {
    struct ap_process *process;
    uint64_t variables; /* bytes, by the image, in whole blocks */
    bool at_once;       /* what of it is loaded is loaded by the call */
    unsigned count;
    struct ap_growth of[AP_GPU_MAX];
};

/* Whether a share of a GPU that this process uses is over its limit. */
static bool is_over(void)
{
    struct ap_process *process = ap_process();
    unsigned count = process ? atomic_load(&process->gpu_count) : 0;
    for (unsigned i = 0; i < count; i++)
        if (ap_use_is_over(process, &process->gpus[i]))
            return true;
    return false;
}

/* By default a library takes nothing before it is used; else all of it, in the current context. */
static bool loads_at_once(void)
{
    int mode = 0;
    const struct real_cuda *real = real_cuda();
    return real->cuModuleGetLoadingMode && real->cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS &&
           mode == EAGER;
}

static void cancel(struct growths *growths)
{
    for (unsigned i = 0; i < growths->count; i++)
        ap_growth_cancel(&growths->of[i]);
}

static CUresult begin(struct growths *growths, uint64_t variables)
{
    struct ap_process *process = ap_process();
    unsigned count = process ? atomic_load(&process->gpu_count) : 0;
    growths->count = 0;
    growths->process = process;
    growths->at_once = variables && loads_at_once();
    growths->variables = variables / AP_BLOCK * AP_BLOCK;
    const struct ap_gpu *here = growths->at_once ? ap_gpu_of_current(process) : NULL;
    for (unsigned i = 0; i < count; i++) {
        struct ap_gpu *gpu = &process->gpus[i];
        CUresult result = ap_growth_begin(&growths->of[i], process, gpu,
                                          gpu == here ? growths->variables : 0);
        if (result != CUDA_SUCCESS) {
            cancel(growths);
            return result;
        }
        growths->count++;
    }
    return CUDA_SUCCESS;
}

static void undo(struct growths *growths, const bool fits[AP_GPU_MAX], CUlibrary given)
{
    (void)real_cuda()->cuLibraryUnload(given);
    for (unsigned i = 0; i < growths->count; i++) {
        if (!fits[i])
            ap_growth_undone(&growths->of[i]);
        else
            ap_truth_shrunk(growths->of[i].process, growths->of[i].gpu, growths->of[i].took);
    }
}

static CUresult finish(struct growths *growths, CUresult result, CUlibrary given,
                       CUlibrary *library)
{
    bool fits[AP_GPU_MAX], all = true;
    if (result != CUDA_SUCCESS) {
        cancel(growths);
        return result;
    }
    for (unsigned i = 0; i < growths->count; i++) {
        struct ap_growth *growth = &growths->of[i];
        all = (fits[i] = ap_growth_settle(growth)) && all;
        if (!growth->told)
            ap_truth_shrunk(growth->process, growth->gpu, growth->took);
    }
    if (!all) {
        undo(growths, fits, given);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (growths->process && !growths->at_once)
        ap_use_note(growths->process, given, growths->variables);
    *library = given;
    return CUDA_SUCCESS;
}

static CUresult prepare(struct growths *growths, uint64_t variables)
{
    ap_truth_all_changed();
    return is_over() ? CUDA_ERROR_OUT_OF_MEMORY : begin(growths, variables);
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
    CUresult result = prepare(&growths, ap_image_variables(code, ap_architecture()));
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuLibraryLoadData(&given, code, options, values, count, library_options,
                                     library_values, library_count);
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
    CUresult result = prepare(&growths, ap_image_variables_of_file(file, ap_architecture()));
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuLibraryLoadFromFile(&given, file, options, values, count, library_options,
                                         library_values, library_count);
    return finish(&growths, result, given, library);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuLibraryUnload)
        return CUDA_ERROR_NOT_FOUND;
    struct ap_process *process = ap_process();
    if (process)
        ap_use_forget(process, library); /* before its handle is another one's */
    CUresult result = real->cuLibraryUnload(library);
    if (process && result == CUDA_SUCCESS) {
        atomic_fetch_add(&process->unloads, 1);
        ap_truth_all_changed();
    }
    return result;
}

/* The calls below make the driver load what it has put off, the whole library with its variables;
 * see use.h. A launch that loads by itself is not watched: what it took is found by the next of our
 * calls. */

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    const struct real_cuda *real = real_cuda();
    CUmodule given = NULL;
    struct ap_use use;
    if (!real->cuLibraryGetModule)
        return CUDA_ERROR_NOT_FOUND;
    if (!module)
        return real->cuLibraryGetModule(module, library);
    CUresult result = ap_use_begin_library(&use, library);
    if (result == CUDA_SUCCESS)
        result = ap_use_finish(&use, real->cuLibraryGetModule(&given, library));
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
    struct ap_use use;
    if (!driver)
        return CUDA_ERROR_NOT_FOUND;
    if (!pointer && !bytes)
        return driver(pointer, bytes, library, name);
    CUresult result = ap_use_begin_library(&use, library);
    if (result == CUDA_SUCCESS)
        result = ap_use_finish(&use, driver(&given, &given_bytes, library, name));
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
    struct ap_use use;
    if (!real->cuKernelGetFunction)
        return CUDA_ERROR_NOT_FOUND;
    if (!function)
        return real->cuKernelGetFunction(function, kernel);
    CUresult result = ap_use_begin_kernel(&use, kernel);
    if (result == CUDA_SUCCESS)
        result = ap_use_finish(&use, real->cuKernelGetFunction(&given, kernel));
    if (result == CUDA_SUCCESS)
        *function = given;
    return result;
}

CUresult cuFuncLoad(CUfunction function)
{
    const struct real_cuda *real = real_cuda();
    struct ap_use use;
    if (!real->cuFuncLoad)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = ap_use_begin(&use, function, NULL);
    return result == CUDA_SUCCESS ? ap_use_finish(&use, real->cuFuncLoad(function)) : result;
}
