/* Modules and libraries: their code and their variables lie in device memory, without any
 * allocation call. A module is there when it was loaded; a library, by default, only once something
 * of it is used, in each context by itself. What the driver took is told by its own accounts; if
 * the share has no room for it, the module or library is unloaded again and refused. */
#include "use.h"

#include <stdatomic.h>

#include "device.h"
#include "image.h"

/* What the image says of its variables is refused before it is loaded. */
static CUresult begin(struct ap_growth *growth, uint64_t variables)
{
    return ap_growth_expect(growth, variables / AP_BLOCK * AP_BLOCK);
}

static CUresult finish(struct ap_growth *growth, CUresult result, CUmodule given, CUmodule *module)
{
    if (result != CUDA_SUCCESS) {
        ap_growth_cancel(growth);
        return result;
    }
    if (ap_growth_settle(growth)) {
        if (!growth->told)
            ap_truth_shrunk(growth->process, growth->gpu, growth->took);
        *module = given;
        return CUDA_SUCCESS;
    }
    (void)real_cuda()->cuModuleUnload(given);
    ap_growth_undone(growth);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleLoad(CUmodule *module, const char *file)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUmodule given = NULL;
    if (!real->cuModuleLoad || !real->cuModuleUnload)
        return CUDA_ERROR_NOT_FOUND;
    if (!module || !ap_growth_begin_here(&growth))
        return real->cuModuleLoad(module, file);
    CUresult result = begin(&growth, ap_image_variables_of_file(file, ap_architecture()));
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuModuleLoad(&given, file);
    return finish(&growth, result, given, module);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUmodule given = NULL;
    if (!real->cuModuleLoadData || !real->cuModuleUnload)
        return CUDA_ERROR_NOT_FOUND;
    if (!module || !ap_growth_begin_here(&growth))
        return real->cuModuleLoadData(module, image);
    CUresult result = begin(&growth, ap_image_variables(image, ap_architecture()));
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuModuleLoadData(&given, image);
    return finish(&growth, result, given, module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options,
                            void **values)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUmodule given = NULL;
    if (!real->cuModuleLoadDataEx || !real->cuModuleUnload)
        return CUDA_ERROR_NOT_FOUND;
    if (!module || !ap_growth_begin_here(&growth))
        return real->cuModuleLoadDataEx(module, image, count, options, values);
    CUresult result = begin(&growth, ap_image_variables(image, ap_architecture()));
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuModuleLoadDataEx(&given, image, count, options, values);
    return finish(&growth, result, given, module);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    CUmodule given = NULL;
    if (!real->cuModuleLoadFatBinary || !real->cuModuleUnload)
        return CUDA_ERROR_NOT_FOUND;
    if (!module || !ap_growth_begin_here(&growth))
        return real->cuModuleLoadFatBinary(module, image);
    CUresult result = begin(&growth, ap_image_variables(image, ap_architecture()));
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuModuleLoadFatBinary(&given, image);
    return finish(&growth, result, given, module);
}

CUresult cuModuleUnload(CUmodule module)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuModuleUnload)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuModuleUnload(module);
    struct ap_process *process = ap_process();
    if (process && result == CUDA_SUCCESS) {
        atomic_fetch_add(&process->unloads, 1);
        ap_truth_all_changed();
    }
    return result;
}

/* With lazy loading a function or variable of a module is loaded when it is asked for. */

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    const struct real_cuda *real = real_cuda();
    CUfunction given = NULL;
    struct ap_use use;
    if (!real->cuModuleGetFunction)
        return CUDA_ERROR_NOT_FOUND;
    if (!function || !name)
        return real->cuModuleGetFunction(function, module, name);
    CUresult result = ap_use_begin(&use, module, name);
    if (result == CUDA_SUCCESS)
        result = ap_use_finish(&use, real->cuModuleGetFunction(&given, module, name));
    if (result == CUDA_SUCCESS)
        *function = given;
    return result;
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1 *pointer, unsigned int *bytes, CUmodule module,
                           const char *name)
{
    const struct real_cuda *real = real_cuda();
    CUdeviceptr_v1 given = 0;
    unsigned int given_bytes = 0;
    struct ap_use use;
    if (!real->cuModuleGetGlobal)
        return CUDA_ERROR_NOT_FOUND;
    if ((!pointer && !bytes) || !name)
        return real->cuModuleGetGlobal(pointer, bytes, module, name);
    CUresult result = ap_use_begin(&use, module, name);
    if (result == CUDA_SUCCESS)
        result = ap_use_finish(&use, real->cuModuleGetGlobal(&given, &given_bytes, module, name));
    if (result == CUDA_SUCCESS && pointer)
        *pointer = given;
    if (result == CUDA_SUCCESS && bytes)
        *bytes = given_bytes;
    return result;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module,
                              const char *name)
{
    const struct real_cuda *real = real_cuda();
    CUdeviceptr given = 0;
    size_t given_bytes = 0;
    struct ap_use use;
    if (!real->cuModuleGetGlobal_v2)
        return CUDA_ERROR_NOT_FOUND;
    if ((!pointer && !bytes) || !name)
        return real->cuModuleGetGlobal_v2(pointer, bytes, module, name);
    CUresult result = ap_use_begin(&use, module, name);
    if (result == CUDA_SUCCESS)
        result =
            ap_use_finish(&use, real->cuModuleGetGlobal_v2(&given, &given_bytes, module, name));
    if (result == CUDA_SUCCESS && pointer)
        *pointer = given;
    if (result == CUDA_SUCCESS && bytes)
        *bytes = given_bytes;
    return result;
}
