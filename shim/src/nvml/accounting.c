/* Accounting, where the administrator has turned it on, speaks of all that ran on the card. Of it a
 * container is told what concerns the processes of its share that live. */
#include "share.h"

static bool is_ours(nvmlDevice_t device, unsigned int pid)
{
    struct ap_holders holders;
    (void)ap_nvml_holders(device, &holders);
    bool ours = ap_holder_of(&holders, pid) != NULL;
    ap_holders_free(&holders);
    return ours;
}

static nvmlReturn_t ask(const void *device, unsigned int *count, void *pids)
{
    return real_nvml()->nvmlDeviceGetAccountingPids(*(const nvmlDevice_t *)device, count, pids);
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count,
                                         unsigned int *pids)
{
    struct ap_fetched theirs;
    struct ap_holders holders;
    unsigned int kept = 0;
    if (!real_nvml()->nvmlDeviceGetAccountingPids)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!count)
        return real_nvml()->nvmlDeviceGetAccountingPids(device, count, pids);
    nvmlReturn_t result = ap_nvml_fetch(ask, &device, sizeof *pids, &theirs);
    if (result == NVML_SUCCESS) {
        result = ap_nvml_holders(device, &holders);
        unsigned int *found = (unsigned int *)(void *)theirs.at;
        for (unsigned int i = 0; i < theirs.count; i++)
            if (ap_holder_of(&holders, found[i]))
                found[kept++] = found[i];
        ap_holders_free(&holders);
    }
    if (result == NVML_SUCCESS)
        result = ap_nvml_room(count, pids, kept);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < kept; i++)
        pids[i] = ((unsigned int *)(void *)theirs.at)[i];
    ap_fetched_free(&theirs);
    return result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, void *stats)
{
    if (!real_nvml()->nvmlDeviceGetAccountingStats)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (stats && !is_ours(device, pid))
        return NVML_ERROR_NOT_FOUND;
    return real_nvml()->nvmlDeviceGetAccountingStats(device, pid, stats);
}

/* The PID is the first field of what `stats` leads to. */
nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, unsigned int *stats)
{
    if (!real_nvml()->nvmlDeviceGetAccountingStats_v2)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (stats && !is_ours(device, *stats))
        return NVML_ERROR_NOT_FOUND;
    return real_nvml()->nvmlDeviceGetAccountingStats_v2(device, stats);
}
