/* The driver's functions, and our own under the same names. */
#ifndef AP_NVML_FRONT_H
#define AP_NVML_FRONT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../common/front.h"
#include "nvml.h"

struct real_nvml {
#define HOOK(name, parameters) nvmlReturn_t(*name) parameters;
#define USE(name, parameters) nvmlReturn_t(*name) parameters;
#include "hooks.def"
#undef HOOK
#undef USE
};

#define HOOK(name, parameters) AP_EXPORT nvmlReturn_t name parameters;
#define USE(name, parameters)
#include "hooks.def"
#undef HOOK
#undef USE

extern struct real_nvml ap_real_nvml;
extern atomic_bool ap_real_nvml_ready;
void ap_real_nvml_fill(void);

/* The driver's functions; NULL members are missing in the driver. */
static inline const struct real_nvml *real_nvml(void)
{
    if (!atomic_load_explicit(&ap_real_nvml_ready, memory_order_acquire))
        ap_real_nvml_fill();
    return &ap_real_nvml;
}

#endif
