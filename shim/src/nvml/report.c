/* Memory of the share in place of the card's: total = limit, free as CUDA says it, the rest used,
 * nothing reserved, so that used + free + reserved = total. */
#include "share.h"

/* From the card's total and free to the share's. */
static nvmlMemory_t as_share(struct ap_gpu *gpu, unsigned long long card_total,
                             unsigned long long card_free)
{
    nvmlMemory_t share = {.total = 0};
    if (!gpu)
        return share;
    unsigned long long limit = ap_gpu_limit(gpu), used = ap_gpu_used(gpu);
    share.total = limit < card_total ? limit : card_total;
    share.free = share.total > used ? share.total - used : 0;
    if (share.free > card_free)
        share.free = card_free;
    share.used = share.total - share.free;
    return share;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    const struct real_nvml *real = real_nvml();
    if (!real->nvmlDeviceGetMemoryInfo)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = real->nvmlDeviceGetMemoryInfo(device, memory);
    if (result == NVML_SUCCESS && memory)
        *memory = as_share(ap_nvml_gpu(device), memory->total, memory->free);
    return result;
}

/* The version is the caller's and the driver judges it. One that it knows and we do not has fields
 * that we cannot answer for, so it is refused as by driver 580, which does not know it either. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    const struct real_nvml *real = real_nvml();
    if (!real->nvmlDeviceGetMemoryInfo_v2)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!memory)
        return real->nvmlDeviceGetMemoryInfo_v2(device, memory);
    unsigned int version = memory->version;
    if (version != NVML_MEMORY_V2)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlMemory_v2_t card = {.version = version};
    nvmlReturn_t result = real->nvmlDeviceGetMemoryInfo_v2(device, &card);
    if (result != NVML_SUCCESS)
        return result;
    nvmlMemory_t share = as_share(ap_nvml_gpu(device), card.total, card.free);
    memory->total = share.total;
    memory->reserved = 0;
    memory->free = share.free;
    memory->used = share.used;
    return NVML_SUCCESS;
}
