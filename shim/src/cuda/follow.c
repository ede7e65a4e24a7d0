#include "follow.h"

#include <stdatomic.h>

#include "../common/account.h"

uint64_t ap_chunks(uint64_t bytes)
{
    uint64_t padded;
    if (__builtin_add_overflow(bytes, AP_CHUNK - 1, &padded))
        return UINT64_MAX;
    return padded / AP_CHUNK * AP_CHUNK;
}

bool ap_follow(struct ap_process *process, struct ap_gpu *gpu, _Atomic uint64_t *charged,
               uint64_t ahead, uint64_t reserved)
{
    uint64_t covered = atomic_load_explicit(charged, memory_order_relaxed) + ahead;
    if (covered == reserved && ahead == 0)
        return true;
    bool enough = reserved <= covered || ap_gpu_reserve(process, gpu, reserved - covered);
    if (reserved < covered)
        ap_gpu_release(gpu, covered - reserved);
    atomic_store_explicit(charged, enough ? reserved : covered, memory_order_relaxed);
    return enough;
}

void ap_follow_taken(struct ap_process *process, struct ap_gpu *gpu, _Atomic uint64_t *charged,
                     uint64_t ahead, uint64_t reserved)
{
    if (ap_follow(process, gpu, charged, ahead, reserved))
        return;
    uint64_t covered = atomic_load_explicit(charged, memory_order_relaxed);
    if (ap_gpu_force(process, gpu, reserved - covered))
        atomic_store_explicit(charged, reserved, memory_order_relaxed);
}
