/* Pools come and go. */
#include <stdatomic.h>

#include "capture.h"
#include "device.h"
#include "follow.h"
#include "pool.h"

/* Managed memory moves to the card that uses it, so it counts wherever its pool is said to be. */
static enum ap_pool_kind kind_of(int allocation_type, const CUmemLocation *location)
{
    bool counts = location->type == CU_MEM_LOCATION_TYPE_DEVICE ||
                  allocation_type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    return counts ? AP_POOL_CHARGED : AP_POOL_UNCHARGED;
}

static struct ap_pool *note(CUmemoryPool handle, int allocation_type, const CUmemLocation *location)
{
    struct ap_process *process = ap_process();
    CUdevice device = location->id;
    const struct real_cuda *real = real_cuda();
    if (!process)
        return NULL;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE &&
        (!real->cuCtxGetDevice || real->cuCtxGetDevice(&device) != CUDA_SUCCESS))
        device = 0;
    return ap_pool_note(process, handle, kind_of(allocation_type, location),
                        ap_gpu_of_device(process, device));
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    const struct real_cuda *real = real_cuda();
    CUmemoryPool given = NULL;
    if (!real->cuMemPoolCreate || !real->cuMemPoolDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!pool || !properties)
        return real->cuMemPoolCreate(pool, properties);
    CUresult result = real->cuMemPoolCreate(&given, properties);
    if (result != CUDA_SUCCESS)
        return result;
    if (!note(given, properties->type, &properties->location)) {
        (void)real->cuMemPoolDestroy(given);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pool = given;
    return CUDA_SUCCESS;
}

/* As the driver does when a device's current pool is destroyed. */
static void leave_devices(struct ap_process *process, const struct CUmemPoolHandle_st *pool)
{
    const struct real_cuda *real = real_cuda();
    int count = ap_device_count(process);
    for (CUdevice device = 0; device < count; device++) {
        CUmemoryPool current = NULL, standard = NULL;
        if (real->cuDeviceGetMemPool && real->cuDeviceGetDefaultMemPool &&
            real->cuDeviceSetMemPool &&
            real->cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS && current == pool &&
            real->cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS)
            (void)real->cuDeviceSetMemPool(device, standard);
    }
}

static void forget_current(struct ap_process *process)
{
    for (unsigned device = 0; device < AP_ORDINAL_MAX; device++)
        atomic_store_explicit(&process->current_pool[device], 0, memory_order_relaxed);
}

/* The driver destroys a pool of which memory is in use when that is freed, and answers nothing
 * about it until then. We destroy it then, so that its charge can follow it to the end. */
static CUresult end_pool(struct ap_process *process, struct ap_pool *pool, CUmemoryPool handle)
{
    const struct real_cuda *real = real_cuda();
    uint64_t used = 0, reserved = 0, none = 0;
    if (pool->ended)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool->kind == AP_POOL_CHARGED && pool->gpu && ap_pool_ask(pool, AP_POOL_USED, &used) &&
        used > 0) {
        ap_pool_trim(process, pool);
        (void)ap_pool_ask(pool, AP_POOL_RESERVED, &reserved);
    }
    if (reserved > 0 && real->cuMemPoolSetAttribute &&
        real->cuMemPoolSetAttribute(handle, AP_POOL_THRESHOLD, &none) == CUDA_SUCCESS) {
        leave_devices(process, handle);
        pool->ended = true;
        return CUDA_SUCCESS;
    }
    CUresult result = real->cuMemPoolDestroy(handle);
    if (result == CUDA_SUCCESS) {
        if (pool->gpu)
            ap_follow_taken(process, pool->gpu, &pool->charged, 0, 0);
        atomic_store_explicit(&pool->handle, 0, memory_order_release);
    }
    return result;
}

static bool is_default_pool(struct ap_process *process, const struct CUmemPoolHandle_st *pool)
{
    const struct real_cuda *real = real_cuda();
    CUmemoryPool standard = NULL;
    int count = ap_device_count(process);
    for (CUdevice device = 0; device < count; device++)
        if (real->cuDeviceGetDefaultMemPool &&
            real->cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS && standard == pool)
            return true;
    return false;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemPoolDestroy)
        return CUDA_ERROR_NOT_FOUND;
    struct ap_pool *pool = process && handle ? ap_pool_find(process, handle) : NULL;
    if (!pool || is_default_pool(process, handle))
        return real->cuMemPoolDestroy(handle);
    ap_lock(&pool->lock);
    CUresult result = end_pool(process, pool, handle);
    ap_unlock(&pool->lock);
    ap_lock(&process->pool_lock);
    forget_current(process);
    ap_unlock(&process->pool_lock);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    uint64_t reserved;
    if (!real->cuMemPoolTrimTo)
        return CUDA_ERROR_NOT_FOUND;
    struct ap_pool *pool = process && handle ? ap_pool_find(process, handle) : NULL;
    if (!pool || pool->kind == AP_POOL_UNCHARGED || !pool->gpu)
        return real->cuMemPoolTrimTo(handle, keep);
    ap_lock(&pool->lock);
    CUresult result =
        pool->ended ? CUDA_ERROR_INVALID_VALUE : real->cuMemPoolTrimTo(handle, keep);
    if (result == CUDA_SUCCESS && ap_pool_ask(pool, AP_POOL_RESERVED, &reserved))
        ap_follow_taken(process, pool->gpu, &pool->charged, 0, reserved);
    ap_unlock(&pool->lock);
    return result;
}

/* Nothing can be allocated from an imported pool; its memory is charged to its exporter. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int handle_type,
                                            unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemPoolImportFromShareableHandle)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuMemPoolImportFromShareableHandle(pool, handle, handle_type, flags);
    if (result == CUDA_SUCCESS && process && pool)
        (void)ap_pool_note(process, *pool, AP_POOL_UNCHARGED, NULL);
    return result;
}

/* The lock spans the call, so that nobody remembers the pool that is on its way out. */
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    struct ap_pool *known = process && pool ? ap_pool_find(process, pool) : NULL;
    if (!real->cuDeviceSetMemPool)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return real->cuDeviceSetMemPool(device, pool);
    if (known && known->ended)
        return CUDA_ERROR_INVALID_VALUE;
    ap_lock(&process->pool_lock);
    CUresult result = real->cuDeviceSetMemPool(device, pool);
    forget_current(process);
    ap_unlock(&process->pool_lock);
    return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemSetMemPool)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return real->cuMemSetMemPool(location, type, pool);
    ap_lock(&process->pool_lock);
    CUresult result = real->cuMemSetMemPool(location, type, pool);
    forget_current(process);
    ap_unlock(&process->pool_lock);
    return result;
}

/* These tell where a pool is that the application did not make. */
CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuMemGetMemPool)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuMemGetMemPool(pool, location, type);
    if (result == CUDA_SUCCESS && pool && location)
        (void)note(*pool, type, location);
    return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuMemGetDefaultMemPool)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuMemGetDefaultMemPool(pool, location, type);
    if (result == CUDA_SUCCESS && pool && location)
        (void)note(*pool, type, location);
    return result;
}
