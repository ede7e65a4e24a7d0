/* How busy each process kept the card, as the driver sampled it: the share's processes only. Inside
 * a PID namespace driver 580 names a process of that namespace by its PID there and all others by
 * their PIDs on the host, so a neighbour whose PID on the host is that of one of ours is taken for
 * ours: two numbers that meet, nothing else of it is seen. */
#include <string.h>

#include "samples.h"

/* Keeps the entries of processes in `holders`; the PID lies at `offset` in each. */
static void keep(struct ap_fetched *samples, size_t entry, size_t offset,
                 const struct ap_holders *holders)
{
    unsigned int kept = 0;
    for (unsigned int i = 0; i < samples->count; i++) {
        uint32_t pid;
        memcpy(&pid, samples->at + i * entry + offset, sizeof pid);
        if (!ap_holder_of(holders, pid))
            continue;
        memmove(samples->at + kept * entry, samples->at + i * entry, entry);
        kept++;
    }
    samples->count = kept;
}

static nvmlReturn_t fetch_ours(nvmlDevice_t device, ap_ask *ask, const void *question, size_t entry,
                               size_t offset, struct ap_fetched *out)
{
    struct ap_holders holders;
    nvmlReturn_t result = ap_nvml_fetch(ask, question, entry, out);
    if (result != NVML_SUCCESS)
        return result;
    result = ap_nvml_holders(device, &holders);
    keep(out, entry, offset, &holders);
    ap_holders_free(&holders);
    if (result == NVML_SUCCESS && out->count == 0)
        result = NVML_ERROR_NOT_FOUND; /* the driver's word for no samples */
    return result;
}

struct question {
    nvmlDevice_t device;
    unsigned long long since;
    unsigned int version;
};

static nvmlReturn_t ask_samples(const void *context, unsigned int *count, void *array)
{
    const struct question *question = context;
    return real_nvml()->nvmlDeviceGetProcessUtilization(question->device, array, count,
                                                        question->since);
}

nvmlReturn_t ap_nvml_samples(nvmlDevice_t device, unsigned long long since, struct ap_fetched *out)
{
    const struct question question = {.device = device, .since = since};
    *out = (struct ap_fetched){.count = 0};
    if (!real_nvml()->nvmlDeviceGetProcessUtilization)
        return NVML_ERROR_NOT_SUPPORTED;
    return fetch_ours(device, ask_samples, &question, sizeof(nvmlProcessUtilizationSample_t),
                      offsetof(nvmlProcessUtilizationSample_t, pid), out);
}

/* The driver wants room for all samples that it may have, and the caller is asked for as much. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since)
{
    const struct real_nvml *real = real_nvml();
    struct ap_fetched ours;
    unsigned int places = 0;
    if (!real->nvmlDeviceGetProcessUtilization)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result =
        real->nvmlDeviceGetProcessUtilization(device, NULL, count ? &places : NULL, since);
    if (result != NVML_ERROR_INSUFFICIENT_SIZE)
        return result;
    if (*count < places || !samples) {
        *count = places;
        return result;
    }
    result = ap_nvml_samples(device, since, &ours);
    if (result == NVML_SUCCESS)
        result = ap_nvml_room(count, samples, ours.count); /* there may be more by now */
    if (result == NVML_SUCCESS)
        memcpy(samples, ours.at, ours.count * sizeof *samples);
    ap_fetched_free(&ours);
    return result;
}

static nvmlReturn_t ask_info(const void *context, unsigned int *count, void *array)
{
    const struct question *question = context;
    nvmlProcessesUtilizationInfo_t info = {question->version, *count, question->since, array};
    nvmlReturn_t result =
        real_nvml()->nvmlDeviceGetProcessesUtilizationInfo(question->device, &info);
    *count = info.processSamplesCount;
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *info)
{
    const struct real_nvml *real = real_nvml();
    struct ap_fetched ours;
    unsigned int places = 0;
    if (!real->nvmlDeviceGetProcessesUtilizationInfo)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!info)
        return real->nvmlDeviceGetProcessesUtilizationInfo(device, info);
    if (info->version != NVML_VERSION_OF(nvmlProcessesUtilizationInfo_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct question question = {device, info->lastSeenTimeStamp, info->version};
    nvmlReturn_t result = ask_info(&question, &places, NULL);
    if (result != NVML_ERROR_INSUFFICIENT_SIZE)
        return result;
    if (info->processSamplesCount < places || !info->procUtilArray) {
        info->processSamplesCount = places;
        return result;
    }
    result = fetch_ours(device, ask_info, &question, sizeof(nvmlProcessUtilizationInfo_v1_t),
                        offsetof(nvmlProcessUtilizationInfo_v1_t, pid), &ours);
    if (result == NVML_SUCCESS)
        result = ap_nvml_room(&info->processSamplesCount, info->procUtilArray, ours.count);
    if (result == NVML_SUCCESS)
        memcpy(info->procUtilArray, ours.at, ours.count * sizeof *info->procUtilArray);
    ap_fetched_free(&ours);
    return result;
}
