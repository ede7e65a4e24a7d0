#include "account.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "descriptor.h"
#include "shares.h"
#include "sys.h"

#define SWEEP_EVERY_MS 100
#define POLL_MS 5
#define TRIES 3 /* with several shares two processes may get into each other's way */

static struct ap_gpu *find_known(struct ap_process *process, const uint8_t uuid[16])
{
    uint32_t count = atomic_load_explicit(&process->gpu_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(process->gpus[i].uuid, uuid, 16) == 0)
            return &process->gpus[i];
    return NULL;
}

/* Ordered by key, so that all processes fill the shares of a GPU in the same order. */
static void insert_share(struct ap_gpu *gpu, struct ap_share *share)
{
    uint32_t at = gpu->share_count++;
    while (at > 0 && strcmp(gpu->shares[at - 1]->limits.share, share->limits.share) > 0) {
        gpu->shares[at] = gpu->shares[at - 1];
        at--;
    }
    gpu->shares[at] = share;
}

static struct ap_gpu *discover(struct ap_process *process, const uint8_t uuid[16])
{
    uint32_t index = atomic_load(&process->gpu_count);
    if (index == AP_GPU_MAX || ap_shares_scan(process, APPORTION_SHARES_DIR) < 0)
        return NULL;
    struct ap_gpu *gpu = &process->gpus[index];
    gpu->index = index;
    gpu->share_count = 0;
    for (uint32_t i = 0; i < process->share_count; i++)
        if (memcmp(process->shares[i].limits.uuid, uuid, 16) == 0)
            insert_share(gpu, &process->shares[i]);
    if (gpu->share_count == 0)
        return NULL;
    memcpy(gpu->uuid, uuid, 16);
    atomic_store_explicit(&process->gpu_count, index + 1, memory_order_release);
    return gpu;
}

struct ap_gpu *ap_gpu_find(struct ap_process *process, const uint8_t uuid[16])
{
    struct ap_gpu *gpu = find_known(process, uuid);
    if (gpu)
        return gpu;
    ap_lock(&process->lock);
    gpu = find_known(process, uuid);
    if (!gpu)
        gpu = discover(process, uuid);
    ap_unlock(&process->lock);
    return gpu;
}

struct ap_gpu *ap_gpu_of_ledger(struct ap_process *process, const struct ap_ledger *ledger)
{
    uint32_t count = atomic_load_explicit(&process->gpu_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < process->gpus[i].share_count; k++)
            if (&process->gpus[i].shares[k]->ledger == ledger)
                return &process->gpus[i];
    return NULL;
}

void ap_uuid_name(const uint8_t uuid[16], char text[AP_UUID_TEXT])
{
    const uint8_t *u = uuid;
    snprintf(text, AP_UUID_TEXT,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
}

uint64_t ap_gpu_limit(const struct ap_gpu *gpu)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < gpu->share_count; i++)
        sum += gpu->shares[i]->limits.memory;
    return sum;
}

static bool join(struct ap_process *process, struct ap_share *share)
{
    if (atomic_load_explicit(&share->ledger.mine, memory_order_acquire))
        return true;
    ap_lock(&process->lock);
    bool joined = ap_ledger_join(&share->ledger) == 0;
    ap_unlock(&process->lock);
    return joined;
}

static uint64_t charged(struct ap_gpu *gpu)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < gpu->share_count; i++)
        sum += atomic_load(&gpu->shares[i]->ledger.head->total);
    return sum;
}

/* All of `bytes` from the shares in order, each as far as it goes; else nothing. One share may be
 * charged over its limit (ap_gpu_force): what it is over lacks in the others. */
static bool reserve_over(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    uint64_t missing = bytes, taken = charged(gpu), limit = ap_gpu_limit(gpu);
    if (taken > limit || bytes > limit - taken)
        return false;
    for (uint32_t i = 0; i < gpu->share_count && missing > 0; i++) {
        struct ap_share *share = gpu->shares[i];
        if (join(process, share))
            missing -= ap_ledger_reserve_part(&share->ledger, missing, share->limits.memory);
    }
    if (missing == 0)
        return true;
    ap_gpu_release(gpu, bytes - missing);
    return false;
}

static bool reserve_once(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    struct ap_share *only = gpu->shares[0];
    if (gpu->share_count > 1)
        return reserve_over(process, gpu, bytes);
    return join(process, only) && ap_ledger_reserve(&only->ledger, bytes, only->limits.memory);
}

static void sweep(struct ap_process *process, struct ap_gpu *gpu)
{
    ap_descriptors_sweep(process);
    for (uint32_t i = 0; i < gpu->share_count; i++)
        ap_ledger_sweep(&gpu->shares[i]->ledger);
}

/* Whether no more than `most` bytes are charged; if not, whether that is so once the driver has
 * freed what the dead linger with, for which it waits. Who would be refused all the same does not
 * wait, nor does anybody longer than each of those who are dead by now may linger. */
static bool await_dead(struct ap_process *process, struct ap_gpu *gpu, uint64_t most)
{
    for (int polls = 0; polls <= AP_LINGER_MS / POLL_MS; polls++) {
        uint64_t lingering = 0, used = charged(gpu);
        for (uint32_t i = 0; i < gpu->share_count; i++)
            lingering += atomic_load(&gpu->shares[i]->ledger.lingering);
        if (used <= most)
            return true;
        if (used - (lingering < used ? lingering : used) > most)
            return false;
        ap_nap(POLL_MS * 1000000L);
        sweep(process, gpu);
    }
    return charged(gpu) <= most;
}

bool ap_gpu_await_dead(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    uint64_t limit = ap_gpu_limit(gpu);
    return bytes <= limit && await_dead(process, gpu, limit - bytes);
}

static bool reserve_after_sweep(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    sweep(process, gpu);
    if (ap_truth_before_refusal)
        ap_truth_before_refusal(process, gpu);
    int tries = gpu->share_count > 1 ? TRIES : 1;
    while (tries-- > 0)
        if (reserve_once(process, gpu, bytes))
            return true;
    return false;
}

bool ap_gpu_reserve(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    if (reserve_once(process, gpu, bytes))
        return true;
    if (bytes > ap_gpu_limit(gpu))
        return false;
    if (reserve_after_sweep(process, gpu, bytes))
        return true;
    bool (*reclaim)(struct ap_process *, struct ap_gpu *) = atomic_load(&process->reclaim);
    return reclaim && reclaim(process, gpu) && reserve_once(process, gpu, bytes);
}

bool ap_gpu_reserve_patiently(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    return ap_gpu_reserve(process, gpu, bytes) ||
           (ap_gpu_await_dead(process, gpu, bytes) && ap_gpu_reserve(process, gpu, bytes));
}

/* Within the limits if it fits, else all of it on the first share that has a slot. */
bool ap_gpu_force(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    if (reserve_once(process, gpu, bytes))
        return true;
    for (uint32_t i = 0; i < gpu->share_count; i++) {
        struct ap_share *share = gpu->shares[i];
        if (join(process, share) && ap_ledger_reserve(&share->ledger, bytes, UINT64_MAX))
            return true;
    }
    return false;
}

/* The split over the shares needs no record: each slot says what this process holds there, and
 * the sum over the GPU's slots is what it was charged. */
void ap_gpu_release(struct ap_gpu *gpu, uint64_t bytes)
{
    for (uint32_t i = gpu->share_count; i > 0 && bytes > 0; i--)
        bytes -= ap_ledger_release(&gpu->shares[i - 1]->ledger, bytes);
}

uint64_t ap_gpu_used(struct ap_gpu *gpu)
{
    uint64_t now = ap_coarse_ms();
    for (uint32_t i = 0; i < gpu->share_count; i++) {
        struct ap_ledger *ledger = &gpu->shares[i]->ledger;
        if (now - atomic_load_explicit(&ledger->swept_ms, memory_order_relaxed) >= SWEEP_EVERY_MS)
            ap_ledger_sweep(ledger);
    }
    return charged(gpu);
}

static uint64_t over_by(struct ap_gpu *gpu)
{
    uint64_t used = charged(gpu), limit = ap_gpu_limit(gpu);
    return used > limit ? used - limit : 0;
}

bool ap_gpu_is_over(struct ap_process *process, struct ap_gpu *gpu, uint64_t margin)
{
    if (over_by(gpu) <= margin)
        return false;
    sweep(process, gpu);
    return over_by(gpu) > margin && !await_dead(process, gpu, ap_gpu_limit(gpu) + margin);
}

bool ap_gpu_mine(struct ap_gpu *gpu, uint64_t *bytes, uint64_t *steps)
{
    bool quiet = true;
    *bytes = *steps = 0;
    for (uint32_t i = 0; i < gpu->share_count; i++) {
        struct apportion_ledger_slot *mine = atomic_load(&gpu->shares[i]->ledger.mine);
        if (!mine)
            continue;
        uint64_t seq = atomic_load(&mine->seq);
        quiet = quiet && (seq & APPORTION_LEDGER_SEQ_BUSY_MASK) == 0;
        *steps += seq;
        *bytes += atomic_load(&mine->used);
    }
    return quiet;
}

void ap_gpu_count_denied(struct ap_gpu *gpu)
{
    atomic_fetch_add(&gpu->shares[0]->ledger.head->denied, 1);
}
