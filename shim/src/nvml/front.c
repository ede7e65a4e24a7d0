#include "front.h"

#define DRIVER "/run/apportion/driver/libnvidia-ml.so.1"

struct real_nvml ap_real_nvml;
atomic_bool ap_real_nvml_ready;

static const struct ap_hook hooks[] = {
#define HOOK(name, parameters) {#name, (void *)name, offsetof(struct real_nvml, name)},
#define USE(name, parameters) {#name, NULL, offsetof(struct real_nvml, name)},
#include "hooks.def"
#undef HOOK
#undef USE
};

#define HOOK_COUNT (sizeof hooks / sizeof hooks[0])

void ap_real_nvml_fill(void)
{
    ap_front_fill(DRIVER, hooks, HOOK_COUNT, &ap_real_nvml);
    atomic_store_explicit(&ap_real_nvml_ready, true, memory_order_release);
}

__attribute__((constructor)) static void loaded(void)
{
    (void)real_nvml();
    ap_front_hide_missing(hooks, HOOK_COUNT, &ap_real_nvml);
}
