/* Modules and libraries: their code and their variables lie in device memory, without any
 * allocation call. A module is there when it was loaded; a library, by default, only once something
 * of it is used, in each context by itself. What the driver took is told by its own accounts; if
 * the share has no room for it, the module or library is unloaded again and refused. */
#include "context.h"

static CUresult finish(struct ap_growth *growth, CUresult result, CUmodule given, CUmodule *module)
{
    if (result != CUDA_SUCCESS) {
        ap_growth_cancel(growth);
        return result;
    }
    if (ap_growth_settle(growth)) {
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
    CUresult result = real->cuModuleLoad(&given, file);
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
    CUresult result = real->cuModuleLoadData(&given, image);
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
    CUresult result = real->cuModuleLoadDataEx(&given, image, count, options, values);
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
    CUresult result = real->cuModuleLoadFatBinary(&given, image);
    return finish(&growth, result, given, module);
}

CUresult cuModuleUnload(CUmodule module)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuModuleUnload)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuModuleUnload(module);
    if (result == CUDA_SUCCESS)
        ap_truth_all_changed();
    return result;
}
