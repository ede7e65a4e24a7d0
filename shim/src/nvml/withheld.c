/* What the driver says of the whole card only, and what would tell of the neighbours: not
 * supported, as NVML says it of a virtual GPU. */
#include "front.h"

/* A bad handle, or a library that is not initialised, is the driver's to name. */
static nvmlReturn_t withheld(nvmlDevice_t device)
{
    char uuid[NVML_UUID_SIZE];
    const struct real_nvml *real = real_nvml();
    nvmlReturn_t result = real->nvmlDeviceGetUUID
                              ? real->nvmlDeviceGetUUID(device, uuid, sizeof uuid)
                              : NVML_SUCCESS;
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

/* Power and clocks are the card's own affair. */
static int is_utilization(nvmlSamplingType_t type)
{
    return (type >= 1 && type <= 4) || type == 8 || type == 9;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long since, nvmlValueType_t *value_type,
                                  unsigned int *count, void *samples)
{
    const struct real_nvml *real = real_nvml();
    if (!real->nvmlDeviceGetSamples)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (is_utilization(type))
        return withheld(device);
    return real->nvmlDeviceGetSamples(device, type, since, value_type, count, samples);
}

nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned int *percent,
                                         unsigned int *period)
{
    (void)percent, (void)period;
    return withheld(device);
}

nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned int *percent,
                                         unsigned int *period)
{
    (void)percent, (void)period;
    return withheld(device);
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, void *info)
{
    (void)info;
    return withheld(device);
}

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions,
                                       unsigned int *fps, unsigned int *latency)
{
    (void)sessions, (void)fps, (void)latency;
    return withheld(device);
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int *count, void *sessions)
{
    (void)count, (void)sessions;
    return withheld(device);
}

nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, void *stats)
{
    (void)stats;
    return withheld(device);
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int *count, void *sessions)
{
    (void)count, (void)sessions;
    return withheld(device);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, void *memory)
{
    (void)memory;
    return withheld(device);
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    (void)memory;
    return withheld(device);
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, void *sample)
{
    (void)sample;
    return withheld(device);
}
