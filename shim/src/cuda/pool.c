#include "pool.h"

#include <stdatomic.h>

#include "../common/account.h"
#include "capture.h"
#include "deferred.h"
#include "device.h"
#include "follow.h"
#include "graph.h"

#define NEWEST_KNOWN 13000 /* CUDA 13.0 */

static CUmemoryPool handle_of(const struct ap_pool *pool)
{
    return (CUmemoryPool)(uintptr_t)atomic_load_explicit(&pool->handle, memory_order_relaxed);
}

bool ap_pool_ask(const struct ap_pool *pool, enum ap_pool_attribute attribute, uint64_t *bytes)
{
    const struct real_cuda *real = real_cuda();
    return real->cuMemPoolGetAttribute &&
           real->cuMemPoolGetAttribute(handle_of(pool), (int)attribute, bytes) == CUDA_SUCCESS;
}

struct ap_pool *ap_pool_find(struct ap_process *process, const struct CUmemPoolHandle_st *handle)
{
    uint32_t count = atomic_load_explicit(&process->pool_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++)
        if (handle_of(&process->pools[i]) == handle)
            return &process->pools[i];
    return NULL;
}

/* What the whole process has in reserve on a GPU goes back to the card. Of pools that another
 * thread is busy with, and of the one that the caller holds, nothing does. */
static bool reclaim(struct ap_process *process, struct ap_gpu *gpu)
{
    bool helped = ap_graphs_reclaim(process, gpu) | ap_deferred_look(process);
    uint32_t count = atomic_load_explicit(&process->pool_count, memory_order_acquire);
    int mode = ap_capture_relax(process);
    for (uint32_t i = 0; i < count; i++) {
        struct ap_pool *pool = &process->pools[i];
        uint64_t before = atomic_load_explicit(&pool->charged, memory_order_relaxed);
        if (before == 0 || !ap_try_lock(&pool->lock))
            continue;
        if (pool->gpu == gpu)
            ap_pool_trim(process, pool);
        helped |= atomic_load_explicit(&pool->charged, memory_order_relaxed) < before;
        ap_unlock(&pool->lock);
    }
    ap_capture_restore(mode);
    return helped;
}

/* With pool_lock: a place that no pool has. */
static struct ap_pool *free_place(struct ap_process *process)
{
    uint32_t count = atomic_load(&process->pool_count);
    for (uint32_t i = 0; i < count; i++)
        if (!handle_of(&process->pools[i]))
            return &process->pools[i];
    return count < AP_POOL_MAX ? &process->pools[count] : NULL;
}

struct ap_pool *ap_pool_note(struct ap_process *process, CUmemoryPool handle,
                             enum ap_pool_kind kind, struct ap_gpu *gpu)
{
    ap_lock(&process->pool_lock);
    struct ap_pool *pool = ap_pool_find(process, handle);
    if (!pool && (pool = free_place(process))) {
        pool->kind = (uint16_t)kind;
        pool->gpu = gpu;
        pool->ended = false;
        pool->in_use = 0;
        atomic_store_explicit(&pool->handle, (uintptr_t)handle, memory_order_release);
        if (pool == &process->pools[atomic_load(&process->pool_count)])
            atomic_fetch_add(&process->pool_count, 1);
    }
    ap_unlock(&process->pool_lock);
    return pool;
}

/* A driver newer than those that we know may begin captures in ways that we do not watch. */
static void learn(struct ap_process *process, int count)
{
    const struct real_cuda *real = real_cuda();
    int version = 0;
    if (!real->cuDriverGetVersion || real->cuDriverGetVersion(&version) != CUDA_SUCCESS ||
        version > NEWEST_KNOWN)
        ap_capture_possible(process);
    atomic_store(&process->reclaim, reclaim);
    atomic_store(&process->device_count, count);
}

int ap_device_count(struct ap_process *process)
{
    const struct real_cuda *real = real_cuda();
    int count = atomic_load_explicit(&process->device_count, memory_order_acquire);
    if (count == 0 && real->cuDeviceGetCount && real->cuDeviceGetCount(&count) == CUDA_SUCCESS &&
        count > 0)
        learn(process, count);
    return count;
}

struct ap_pool *ap_pool_of(struct ap_process *process, CUmemoryPool handle, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    struct ap_pool *pool = ap_pool_find(process, handle);
    int count = ap_device_count(process);
    if (pool)
        return pool;
    for (CUdevice other = 0; other < count; other++) {
        CUmemoryPool standard = NULL;
        if (real->cuDeviceGetDefaultMemPool &&
            real->cuDeviceGetDefaultMemPool(&standard, other) == CUDA_SUCCESS &&
            standard == handle)
            device = other;
    }
    return ap_pool_note(process, handle, AP_POOL_CHARGED, ap_gpu_of_device(process, device));
}

CUresult ap_pool_current(struct ap_process *process, CUdevice device, CUmemoryPool *handle)
{
    const struct real_cuda *real = real_cuda();
    bool remembered = device >= 0 && (unsigned)device < AP_ORDINAL_MAX;
    uint64_t known = 0;
    if (remembered)
        known = atomic_load_explicit(&process->current_pool[device], memory_order_relaxed);
    if (known) {
        *handle = (CUmemoryPool)(uintptr_t)known;
        return CUDA_SUCCESS;
    }
    if (!real->cuDeviceGetMemPool)
        return CUDA_ERROR_NOT_FOUND;
    ap_lock(&process->pool_lock);
    CUresult result = real->cuDeviceGetMemPool(handle, device);
    if (result == CUDA_SUCCESS && remembered)
        atomic_store_explicit(&process->current_pool[device], (uintptr_t)*handle,
                              memory_order_relaxed);
    ap_unlock(&process->pool_lock);
    return result;
}

/* A pool that the application has destroyed, and of which nothing is in use any more. */
static void finish(struct ap_pool *pool)
{
    const struct real_cuda *real = real_cuda();
    if (real->cuMemPoolDestroy(handle_of(pool)) == CUDA_SUCCESS)
        atomic_store_explicit(&pool->handle, 0, memory_order_release);
}

static void look(struct ap_process *process, struct ap_pool *pool)
{
    uint64_t reserved;
    if (pool->kind != AP_POOL_CHARGED || !pool->gpu || !handle_of(pool) ||
        !ap_pool_ask(pool, AP_POOL_RESERVED, &reserved))
        return;
    ap_follow_taken(process, pool->gpu, &pool->charged, 0, reserved);
    if (pool->ended && reserved == 0)
        finish(pool);
}

void ap_pool_trim(struct ap_process *process, struct ap_pool *pool)
{
    const struct real_cuda *real = real_cuda();
    if (real->cuMemPoolTrimTo && handle_of(pool))
        (void)real->cuMemPoolTrimTo(handle_of(pool), 0);
    look(process, pool);
}

void ap_pools_look(struct ap_process *process)
{
    uint32_t count = atomic_load_explicit(&process->pool_count, memory_order_acquire);
    ap_graphs_look(process);
    ap_deferred_look(process);
    if (count == 0)
        return;
    int mode = ap_capture_relax(process);
    for (uint32_t i = 0; i < count; i++) {
        struct ap_pool *pool = &process->pools[i];
        if (!handle_of(pool) || !ap_try_lock(&pool->lock))
            continue;
        look(process, pool);
        ap_unlock(&pool->lock);
    }
    ap_capture_restore(mode);
}
