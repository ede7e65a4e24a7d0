/* cuGetProcAddress: the driver decides name, version, flags and status; every pointer it gives is
 * one of its exported functions (measured: 60 functions, 12 versions, all flags), so ours is put in
 * its place by identity and nothing else changes. */
#include "front.h"

static void swap(void **function)
{
    if (!function || !*function)
        return;
    void *front = ap_cuda_front_of(*function);
    if (front)
        *function = front;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuGetProcAddress)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuGetProcAddress(symbol, function, version, flags);
    if (result == CUDA_SUCCESS)
        swap(function);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                             int *status)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuGetProcAddress_v2)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuGetProcAddress_v2(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS)
        swap(function);
    return result;
}
