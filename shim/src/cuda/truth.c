#include "truth.h"

#include <stdatomic.h>

#include "../common/sys.h"
#include "own.h"

#define READINGS 4
#define SOON_MS 10
#define MIB_SHIFT 20
#define AT_ONCE 32

struct reading {
    uint64_t low, high; /* the overhead lies between them, promises left out */
    bool quiet;
};

enum outcome { UNTOLD, SETTLED, UNCHARGED };

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* The overhead's charge is set, up or down; the caller holds the lock. */
static enum outcome charge(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    uint64_t now = atomic_load(&gpu->overhead.bytes);
    if (bytes > now && !ap_gpu_force(process, gpu, bytes - now))
        return UNCHARGED;
    if (bytes < now)
        ap_gpu_release(gpu, now - bytes);
    atomic_store(&gpu->overhead.bytes, bytes);
    return SETTLED;
}

static uint64_t charged_now(struct ap_gpu *gpu)
{
    return less(atomic_load(&gpu->overhead.bytes), atomic_load(&gpu->overhead.promised));
}

/* This process's memory by the driver's word; false: it does not tell. */
static bool told(struct ap_process *process, struct ap_gpu *gpu, uint64_t *bytes)
{
    if (gpu->overhead.distrusted)
        return false;
    enum ap_own_answer answer = ap_own_memory(process, gpu, bytes);
    if (answer != AP_OWN_ABSENT)
        return answer == AP_OWN_TOLD;
    *bytes = 0;
    return atomic_load(&gpu->overhead.contexts) == 0;
}

/* What is reserved for calls in flight may be in the driver's figure already or not; what is held
 * with other processes, which is charged to no one's own slot, is in the figure of one of them. */
static bool read_once(struct ap_process *process, struct ap_gpu *gpu, struct reading *out)
{
    uint64_t used, steps, used_after, steps_after, truth;
    bool placing = !ap_lock_try(&gpu->small_lock), mapping = !ap_lock_try(&process->vmm_lock);
    bool still = !placing && !mapping && atomic_load(&gpu->moving) == 0;
    bool quiet = ap_gpu_mine(gpu, &used, &steps) && still;
    uint64_t growing = atomic_load(&gpu->overhead.growing);
    uint64_t maybe = growing + atomic_load(&gpu->held_bytes);
    bool known = told(process, gpu, &truth);
    quiet = ap_gpu_mine(gpu, &used_after, &steps_after) && quiet && steps == steps_after;
    quiet = quiet && atomic_load(&gpu->moving) == 0;
    if (!placing)
        ap_unlock(&gpu->small_lock);
    if (!mapping)
        ap_unlock(&process->vmm_lock);
    if (!known)
        return false;
    uint64_t others = atomic_load(&gpu->overhead.bytes) + growing;
    uint64_t allocations = less(less(used_after, others), atomic_load(&gpu->overhead.unseen));
    out->high = less(truth, allocations);
    out->low = less(out->high, maybe);
    out->quiet = quiet;
    return true;
}

/* A promise stays charged until the driver is seen to have taken about that much at once (512 MiB
 * of heap: 514; loading code that uses a heap: 138 before that). */
static enum outcome adopt(struct ap_process *process, struct ap_gpu *gpu, uint64_t seen)
{
    uint64_t promised = atomic_load(&gpu->overhead.promised);
    uint64_t grown = less(seen, charged_now(gpu));
    if (grown >= promised / 2)
        promised = less(promised, grown);
    enum outcome outcome = charge(process, gpu, seen + promised);
    if (outcome == SETTLED)
        atomic_store(&gpu->overhead.promised, promised);
    return outcome;
}

/* Without quiet readings: a little less than the least that was read, and no lower than what is
 * left when `known` bytes have gone. */
static enum outcome settle_roughly(struct ap_process *process, struct ap_gpu *gpu,
                                   struct reading seen, uint64_t known)
{
    uint64_t now = charged_now(gpu), floor = less(now, known);
    if (less(seen.low, AP_BLOCK) > now)
        return adopt(process, gpu, seen.low - AP_BLOCK);
    if (known && seen.high < now)
        return adopt(process, gpu, seen.high > floor ? seen.high : floor);
    return SETTLED;
}

/* The caller holds the lock. `known` bytes have gone for certain. */
static enum outcome settle(struct ap_process *process, struct ap_gpu *gpu, uint64_t known,
                           bool raise)
{
    struct reading now, last = {.quiet = false}, all = {.low = UINT64_MAX};
    atomic_store(&gpu->overhead.asked_ms, ap_coarse_ms());
    for (int i = 0; i < READINGS; i++) {
        uint64_t charged = charged_now(gpu);
        if (!read_once(process, gpu, &now))
            return UNTOLD;
        if (now.low <= charged && now.high >= charged)
            return SETTLED;
        if (now.low > charged && (!raise || now.quiet))
            return raise ? adopt(process, gpu, now.low) : SETTLED;
        if (now.high < charged && now.quiet && last.quiet)
            return adopt(process, gpu, now.high > last.high ? now.high : last.high);
        all.low = now.low < all.low ? now.low : all.low;
        all.high = now.high > all.high ? now.high : all.high;
        last = now;
    }
    return settle_roughly(process, gpu, all, known);
}

/* Nothing to ask before this process's first context. */
void ap_truth_refresh(struct ap_process *process, struct ap_gpu *gpu, uint64_t every_ms)
{
    struct ap_overhead *overhead = &gpu->overhead;
    if (atomic_load_explicit(&overhead->contexts, memory_order_relaxed) == 0)
        return;
    uint64_t asked = atomic_load_explicit(&overhead->asked_ms, memory_order_relaxed);
    if (ap_coarse_ms() - asked < every_ms || !ap_lock_try(&overhead->lock))
        return;
    (void)settle(process, gpu, 0, true);
    ap_unlock(&overhead->lock);
}

void ap_truth_all_refresh(struct ap_process *process, uint64_t every_ms)
{
    uint32_t count = atomic_load_explicit(&process->gpu_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++)
        ap_truth_refresh(process, &process->gpus[i], every_ms);
}

void ap_truth_all_changed(void)
{
    struct ap_process *process = ap_process();
    if (process)
        ap_truth_all_refresh(process, 0);
}

/* Only lowers: the driver may have taken already what is about to be charged. */
void ap_truth_before_refusal(struct ap_process *process, struct ap_gpu *gpu)
{
    struct ap_overhead *overhead = &gpu->overhead;
    if (atomic_load(&overhead->bytes) == 0 || !ap_lock_try(&overhead->lock))
        return;
    if (ap_coarse_ms() - atomic_load(&overhead->asked_ms) >= SOON_MS)
        (void)settle(process, gpu, 0, false);
    ap_unlock(&overhead->lock);
}

/* Before its first context the driver must not list this process as holding more than it was
 * charged, but for a block or two: if it does, it speaks of another process that has this PID
 * elsewhere. */
static void look_first(struct ap_process *process, struct ap_gpu *gpu)
{
    uint64_t truth, used, steps;
    ap_lock(&gpu->overhead.lock);
    if (!gpu->overhead.asked) {
        gpu->overhead.asked = true;
        (void)ap_gpu_mine(gpu, &used, &steps);
        gpu->overhead.distrusted =
            ap_own_memory(process, gpu, &truth) == AP_OWN_TOLD && truth > used + 2 * AP_BLOCK;
    }
    ap_unlock(&gpu->overhead.lock);
}

CUresult ap_growth_begin(struct ap_growth *growth, struct ap_process *process, struct ap_gpu *gpu,
                         uint64_t expected)
{
    *growth = (struct ap_growth){.process = process, .gpu = gpu, .expected = expected};
    if (expected && !ap_gpu_reserve_patiently(process, gpu, expected)) {
        ap_gpu_count_denied(gpu);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    atomic_fetch_add(&gpu->overhead.growing, expected);
    growth->before = atomic_load(&gpu->overhead.bytes);
    return CUDA_SUCCESS;
}

CUresult ap_growth_begin_context(struct ap_growth *growth, struct ap_process *process,
                                 struct ap_gpu *gpu)
{
    look_first(process, gpu);
    uint64_t mib = atomic_load(&gpu->shares[0]->ledger.head->context_mib);
    CUresult result = ap_growth_begin(growth, process, gpu, mib << MIB_SHIFT);
    growth->context = true;
    return result;
}

CUresult ap_growth_expect(struct ap_growth *growth, uint64_t bytes)
{
    if (bytes && !ap_gpu_reserve_patiently(growth->process, growth->gpu, bytes)) {
        ap_growth_cancel(growth);
        ap_gpu_count_denied(growth->gpu);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    atomic_fetch_add(&growth->gpu->overhead.growing, bytes);
    growth->expected += bytes;
    return CUDA_SUCCESS;
}

void ap_growth_cancel(struct ap_growth *growth)
{
    atomic_fetch_sub(&growth->gpu->overhead.growing, growth->expected);
    ap_gpu_release(growth->gpu, growth->expected);
}

/* The least that was seen: an estimate must not refuse what fits, and what it lacks is settled. */
static void learn(struct ap_gpu *gpu, uint64_t bytes)
{
    uint64_t mib = (bytes + (1u << MIB_SHIFT) - 1) >> MIB_SHIFT;
    for (uint32_t i = 0; mib > 0 && mib < UINT32_MAX && i < gpu->share_count; i++) {
        _Atomic uint32_t *known = &gpu->shares[i]->ledger.head->context_mib;
        uint32_t was = atomic_load(known);
        bool done = was != 0 && was <= mib;
        while (!done)
            done = atomic_compare_exchange_weak(known, &was, (uint32_t)mib) ||
                   (was != 0 && was <= mib);
    }
}

bool ap_growth_settle(struct ap_growth *growth)
{
    struct ap_gpu *gpu = growth->gpu;
    ap_lock(&gpu->overhead.lock);
    atomic_fetch_add(&gpu->overhead.contexts, growth->context);
    atomic_fetch_add(&gpu->overhead.bytes, growth->expected);
    atomic_fetch_sub(&gpu->overhead.growing, growth->expected);
    enum outcome outcome = settle(growth->process, gpu, growth->expected, true);
    growth->told = outcome != UNTOLD;
    growth->took = growth->told ? less(atomic_load(&gpu->overhead.bytes), growth->before)
                                : growth->expected;
    ap_unlock(&gpu->overhead.lock);
    if (outcome == UNCHARGED || (growth->took > 0 && ap_gpu_is_over(growth->process, gpu, 0)))
        return false;
    /* What another thread did meanwhile may be in the figure. */
    if (growth->told && growth->context && atomic_load(&gpu->moving) == 0 &&
        atomic_load(&gpu->overhead.growing) == 0)
        learn(gpu, growth->took);
    return true;
}

void ap_growth_undone(struct ap_growth *growth)
{
    if (growth->context)
        atomic_fetch_sub(&growth->gpu->overhead.contexts, 1);
    ap_truth_shrunk(growth->process, growth->gpu, growth->took);
    ap_gpu_count_denied(growth->gpu);
}

void ap_truth_shrunk(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    ap_lock(&gpu->overhead.lock);
    if (settle(process, gpu, bytes, true) == UNTOLD)
        (void)charge(process, gpu, less(atomic_load(&gpu->overhead.bytes), bytes));
    ap_unlock(&gpu->overhead.lock);
}

/* The promise of one context becomes another sum; the caller holds the lock. */
static void set_promise(struct ap_gpu *gpu, uint64_t from, uint64_t to)
{
    atomic_store(&gpu->overhead.promised, less(atomic_load(&gpu->overhead.promised), from) + to);
    atomic_store(&gpu->overhead.bytes, less(atomic_load(&gpu->overhead.bytes), from) + to);
    if (from > to)
        ap_gpu_release(gpu, from - to);
}

/* What of a context's promise is still charged. */
static uint64_t take_promise(struct ap_process *process, struct ap_gpu *gpu, uint64_t context)
{
    struct ap_record record = {.bytes = 0};
    uint64_t promised = atomic_load(&gpu->overhead.promised);
    (void)ap_table_take(&process->promises, context, &record);
    return record.bytes < promised ? record.bytes : promised;
}

static void note_promise(struct ap_process *process, struct ap_gpu *gpu, uint64_t context,
                         uint64_t bytes)
{
    struct ap_record record = {.key = context, .bytes = bytes, .gpu = (uint16_t)gpu->index}, old;
    bool had_old = false;
    if (bytes) /* without memory to note it, it stays charged to the process's end */
        (void)ap_table_put(&process->promises, &record, &old, &had_old);
}

static bool promise(struct ap_process *process, struct ap_gpu *gpu, uint64_t context,
                    uint64_t bytes, uint64_t *before)
{
    ap_lock(&gpu->overhead.lock);
    uint64_t from = take_promise(process, gpu, context);
    bool fits = bytes <= from || ap_gpu_reserve(process, gpu, bytes - from);
    if (fits)
        set_promise(gpu, from, bytes);
    note_promise(process, gpu, context, fits ? bytes : from);
    ap_unlock(&gpu->overhead.lock);
    *before = from;
    return fits;
}

bool ap_truth_promise(struct ap_process *process, struct ap_gpu *gpu, uint64_t context,
                      uint64_t bytes, uint64_t *before)
{
    if (promise(process, gpu, context, bytes, before) ||
        (ap_gpu_await_dead(process, gpu, bytes - *before) &&
         promise(process, gpu, context, bytes, before)))
        return true;
    ap_gpu_count_denied(gpu);
    return false;
}

/* What libraries brought into the context went with it. */
static void forget_brought(struct ap_process *process, uint64_t context)
{
    struct ap_record records[AT_ONCE];
    size_t count = AT_ONCE;
    while (count > 0)
        count = ap_table_take_context(&process->brought, context, records, AT_ONCE);
}

void ap_truth_context_ended(struct ap_process *process, struct ap_gpu *gpu, uint64_t context,
                            uint64_t bytes)
{
    ap_lock(&gpu->overhead.lock);
    set_promise(gpu, take_promise(process, gpu, context), 0);
    atomic_fetch_sub(&gpu->overhead.contexts, 1);
    ap_unlock(&gpu->overhead.lock);
    atomic_fetch_add(&process->unloads, 1);
    forget_brought(process, context);
    ap_truth_shrunk(process, gpu, bytes);
}
