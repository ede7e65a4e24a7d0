/* How busy the share keeps the card: the sum of its processes' samples of the last second, in
 * percent of the card. Where the driver samples no processes, nothing can be said of a share, so
 * that is not supported; the card's figure would be the neighbours'. */
#define _GNU_SOURCE
#include <time.h>

#include "samples.h"

#define WINDOW_US 1000000ull

static unsigned long long wall_clock_us(void)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
}

static unsigned int percent(unsigned int sum, unsigned int more)
{
    return more > 100 - sum ? 100 : sum + more;
}

static nvmlReturn_t add_up(nvmlDevice_t device, nvmlProcessUtilizationSample_t *sum)
{
    struct ap_fetched ours;
    *sum = (nvmlProcessUtilizationSample_t){.pid = 0};
    nvmlReturn_t result = ap_nvml_samples(device, wall_clock_us() - WINDOW_US, &ours);
    const nvmlProcessUtilizationSample_t *each = (const void *)ours.at;
    for (unsigned int i = 0; result == NVML_SUCCESS && i < ours.count; i++) {
        sum->smUtil = percent(sum->smUtil, each[i].smUtil);
        sum->memUtil = percent(sum->memUtil, each[i].memUtil);
        sum->encUtil = percent(sum->encUtil, each[i].encUtil);
        sum->decUtil = percent(sum->decUtil, each[i].decUtil);
    }
    ap_fetched_free(&ours);
    return result == NVML_ERROR_NOT_FOUND ? NVML_SUCCESS : result;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    nvmlProcessUtilizationSample_t sum;
    nvmlUtilization_t card;
    if (!real_nvml()->nvmlDeviceGetUtilizationRates)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result =
        real_nvml()->nvmlDeviceGetUtilizationRates(device, utilization ? &card : NULL);
    if (result == NVML_SUCCESS)
        result = add_up(device, &sum);
    if (result == NVML_SUCCESS)
        *utilization = (nvmlUtilization_t){sum.smUtil, sum.memUtil};
    return result;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                             unsigned int *period)
{
    nvmlProcessUtilizationSample_t sum;
    unsigned int card;
    if (!real_nvml()->nvmlDeviceGetEncoderUtilization)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result =
        real_nvml()->nvmlDeviceGetEncoderUtilization(device, percent ? &card : NULL, period);
    if (result == NVML_SUCCESS)
        result = add_up(device, &sum);
    if (result == NVML_SUCCESS)
        *percent = sum.encUtil;
    return result;
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                             unsigned int *period)
{
    nvmlProcessUtilizationSample_t sum;
    unsigned int card;
    if (!real_nvml()->nvmlDeviceGetDecoderUtilization)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result =
        real_nvml()->nvmlDeviceGetDecoderUtilization(device, percent ? &card : NULL, period);
    if (result == NVML_SUCCESS)
        result = add_up(device, &sum);
    if (result == NVML_SUCCESS)
        *percent = sum.decUtil;
    return result;
}
