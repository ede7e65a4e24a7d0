/* The driver's samples of the share's processes. */
#ifndef AP_NVML_SAMPLES_H
#define AP_NVML_SAMPLES_H

#include "share.h"

/* Fetches the nvmlProcessUtilizationSample_t of the share's processes since a time (microseconds of
 * the wall clock). NVML_ERROR_NOT_FOUND: there are none. ap_fetched_free afterwards. */
nvmlReturn_t ap_nvml_samples(nvmlDevice_t device, unsigned long long since, struct ap_fetched *out);

#endif
