#include "front.h"

#include "../common/process.h"
#include "gate.h"

#define DRIVER "/run/apportion/driver/libcuda.so.1"

struct real_cuda ap_real_cuda;
atomic_bool ap_real_cuda_ready;

static const struct ap_hook hooks[] = {
#define HOOK(name, parameters) {#name, (void *)name, offsetof(struct real_cuda, name)},
#define GATE(name, parameters)
#define USE(name, parameters) {#name, NULL, offsetof(struct real_cuda, name)},
#include "hooks.def"
#undef HOOK
#undef GATE
#undef USE
};

static const struct ap_hook gates[] = {
#define HOOK(name, parameters)
#define GATE(name, parameters) {#name, (void *)name, offsetof(struct real_cuda, name)},
#define USE(name, parameters)
#include "hooks.def"
#undef HOOK
#undef GATE
#undef USE
};

#define HOOK_COUNT (sizeof hooks / sizeof hooks[0])
#define GATE_COUNT (sizeof gates / sizeof gates[0])

/* Run by the constructor; earlier only if another library's constructor calls us first. Two
 * threads that both run it write the same values. */
void ap_real_cuda_fill(void)
{
    ap_front_fill(DRIVER, hooks, HOOK_COUNT, &ap_real_cuda);
    ap_front_fill(DRIVER, gates, GATE_COUNT, &ap_real_cuda);
    atomic_store_explicit(&ap_real_cuda_ready, true, memory_order_release);
}

/* Where no gate is needed, programs find the driver's functions in the gates' place. */
__attribute__((constructor)) static void loaded(void)
{
    (void)real_cuda();
    ap_front_hide_missing(hooks, HOOK_COUNT, &ap_real_cuda);
    ap_gates_look();
    if (ap_gates_on())
        ap_front_hide_missing(gates, GATE_COUNT, &ap_real_cuda);
    else
        ap_front_hide(gates, GATE_COUNT);
}

void *ap_cuda_front_of(const void *real)
{
    void *front = ap_front_of(hooks, HOOK_COUNT, &ap_real_cuda, real);
    return front || !ap_gates_on() ? front
                                   : ap_front_of(gates, GATE_COUNT, &ap_real_cuda, real);
}
