/* Whether the driver still has memory of a process of the share that is dead: so memory
 * information, which looks for the dead, does not tell of room that is not there yet. */
#include <errno.h>
#include <string.h>

#include "share.h"

#define NOT_AVAILABLE UINT64_MAX

static nvmlReturn_t ask(const void *device, unsigned int *count, void *infos)
{
    const struct real_nvml *real = real_nvml();
    if (real->nvmlDeviceGetComputeRunningProcesses_v2)
        return real->nvmlDeviceGetComputeRunningProcesses_v2((nvmlDevice_t)device, count, infos);
    return real->nvmlDeviceGetComputeRunningProcesses_v3((nvmlDevice_t)device, count, infos);
}

static bool find(const struct ap_fetched *list, uint32_t pid)
{
    for (unsigned int i = 0; i < list->count; i++) {
        nvmlProcessInfo_t entry;
        memcpy(&entry, list->at + i * sizeof entry, sizeof entry);
        if (entry.pid == pid)
            return entry.usedGpuMemory > 0 && entry.usedGpuMemory != NOT_AVAILABLE;
    }
    return false;
}

/* Drivers that lack the second version, of before 2021, are not asked. */
bool ap_driver_lists(const struct ap_ledger *ledger, uint32_t pid)
{
    int saved = errno;
    char name[AP_UUID_TEXT];
    nvmlDevice_t device;
    struct ap_fetched list;
    const struct real_nvml *real = real_nvml();
    struct ap_process *process = ap_process();
    struct ap_gpu *gpu = process ? ap_gpu_of_ledger(process, ledger) : NULL;
    if (!gpu || !real->nvmlDeviceGetHandleByUUID ||
        !(real->nvmlDeviceGetComputeRunningProcesses_v2 ||
          real->nvmlDeviceGetComputeRunningProcesses_v3))
        return false;
    ap_uuid_name(gpu->uuid, name);
    bool found = false;
    if (real->nvmlDeviceGetHandleByUUID(name, &device) == NVML_SUCCESS &&
        ap_nvml_fetch(ask, device, sizeof(nvmlProcessInfo_t), &list) == NVML_SUCCESS) {
        found = find(&list, pid);
        ap_fetched_free(&list);
    }
    errno = saved;
    return found;
}
