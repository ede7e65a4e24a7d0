/* The driver's functions, and our own under the same names. */
#ifndef AP_CUDA_FRONT_H
#define AP_CUDA_FRONT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../common/front.h"
#include "cuda.h"

struct real_cuda {
#define HOOK(name, parameters) CUresult(*name) parameters;
#define GATE(name, parameters) CUresult(*name) parameters;
#define USE(name, parameters) CUresult(*name) parameters;
#include "hooks.def"
#undef HOOK
#undef GATE
#undef USE
};

#define HOOK(name, parameters) AP_EXPORT CUresult name parameters;
#define GATE(name, parameters) AP_EXPORT CUresult name parameters;
#define USE(name, parameters)
#include "hooks.def"
#undef HOOK
#undef GATE
#undef USE

extern struct real_cuda ap_real_cuda;
extern atomic_bool ap_real_cuda_ready;
void ap_real_cuda_fill(void);

/* The driver's functions; NULL members are missing in the driver. */
static inline const struct real_cuda *real_cuda(void)
{
    if (!atomic_load_explicit(&ap_real_cuda_ready, memory_order_acquire))
        ap_real_cuda_fill();
    return &ap_real_cuda;
}

/* Our function for one of the driver's, or NULL. */
void *ap_cuda_front_of(const void *real);

#endif
