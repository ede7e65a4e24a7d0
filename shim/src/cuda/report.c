/* What the application is told about memory: the share, never more than the card really has. */
#include "../common/account.h"
#include "device.h"
#include "front.h"
#include "pool.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Turns the card's figures into the share's; no valid share: nothing. */
static void as_share(struct ap_gpu *gpu, uint64_t *free, uint64_t *total)
{
    uint64_t limit = gpu ? ap_gpu_limit(gpu) : 0;
    if (gpu)
        ap_pools_look(ap_process());
    uint64_t used = gpu ? ap_gpu_used(gpu) : 0;
    *total = least(*total, limit);
    *free = least(*free, *total > used ? *total - used : 0);
}

static struct ap_gpu *gpu_of(CUdevice device)
{
    struct ap_process *process = ap_process();
    return process ? ap_gpu_of_device(process, device) : NULL;
}

static struct ap_gpu *current_gpu(void)
{
    struct ap_process *process = ap_process();
    return process ? ap_gpu_of_current(process) : NULL;
}

/* The driver takes NULL for either (measured), so do we. */
CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    const struct real_cuda *real = real_cuda();
    size_t card_free = 0, card_total = 0;
    if (!real->cuMemGetInfo_v2)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuMemGetInfo_v2(&card_free, &card_total);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t share_free = card_free, share_total = card_total;
    as_share(current_gpu(), &share_free, &share_total);
    if (free)
        *free = share_free;
    if (total)
        *total = share_total;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    const struct real_cuda *real = real_cuda();
    unsigned int card_free = 0, card_total = 0;
    if (!real->cuMemGetInfo)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuMemGetInfo(&card_free, &card_total);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t share_free = card_free, share_total = card_total;
    as_share(current_gpu(), &share_free, &share_total);
    if (free)
        *free = (unsigned int)share_free;
    if (total)
        *total = (unsigned int)share_total;
    return CUDA_SUCCESS;
}

static uint64_t total_as_share(CUdevice device, uint64_t card)
{
    struct ap_gpu *gpu = gpu_of(device);
    return gpu ? least(card, ap_gpu_limit(gpu)) : 0;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuDeviceTotalMem_v2)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuDeviceTotalMem_v2(bytes, device);
    if (result == CUDA_SUCCESS && bytes)
        *bytes = total_as_share(device, *bytes);
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuDeviceTotalMem)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuDeviceTotalMem(bytes, device);
    if (result == CUDA_SUCCESS && bytes)
        *bytes = (unsigned int)total_as_share(device, *bytes);
    return result;
}
