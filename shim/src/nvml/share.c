#define _GNU_SOURCE
#include "share.h"

#include <string.h>

#include "../common/sys.h"

#define TRIES 4
#define SLACK 16 /* processes that may start between the two questions */

struct ap_gpu *ap_nvml_gpu(nvmlDevice_t device)
{
    char text[NVML_UUID_SIZE] = "";
    uint8_t uuid[16];
    const struct real_nvml *real = real_nvml();
    struct ap_process *process = ap_process();
    if (!process || !real->nvmlDeviceGetUUID)
        return NULL;
    if (real->nvmlDeviceGetUUID(device, text, sizeof text) != NVML_SUCCESS)
        return NULL;
    if (apportion_uuid_parse(text, strnlen(text, sizeof text), uuid) < 0)
        return NULL;
    return ap_gpu_find(process, uuid);
}

nvmlReturn_t ap_nvml_holders(nvmlDevice_t device, struct ap_holders *out)
{
    struct ap_gpu *gpu = ap_nvml_gpu(device);
    *out = (struct ap_holders){.count = 0};
    if (!gpu)
        return NVML_SUCCESS;
    return ap_gpu_holders(gpu, out) ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t ap_nvml_room(unsigned int *count, const void *array, unsigned int found)
{
    unsigned int places = *count;
    *count = found;
    if (found > places)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return found > 0 && !array ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t ap_nvml_fetch(ap_ask *ask, const void *question, size_t entry, struct ap_fetched *out)
{
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    *out = (struct ap_fetched){.count = 0};
    for (int tries = 0; tries < TRIES && result == NVML_ERROR_INSUFFICIENT_SIZE; tries++) {
        unsigned int count = 0;
        ap_fetched_free(out);
        result = ask(question, &count, NULL);
        if (result != NVML_ERROR_INSUFFICIENT_SIZE)
            return result;
        count += SLACK;
        out->size = count * entry;
        out->at = ap_map_private(out->size);
        if (!out->at)
            return NVML_ERROR_MEMORY;
        result = ask(question, &count, out->at);
        out->count = result == NVML_SUCCESS ? count : 0;
    }
    return result;
}

void ap_fetched_free(struct ap_fetched *fetched)
{
    if (fetched->at)
        ap_unmap(fetched->at, fetched->size);
    *fetched = (struct ap_fetched){.count = 0};
}
