/* Allocation from pools; see pool.h for what is charged and why. */
#include "../common/account.h"
#include "capture.h"
#include "device.h"
#include "follow.h"
#include "pool.h"

#include <stdatomic.h>

struct request {
    CUmemoryPool pool; /* NULL: the current one of the stream's device */
    size_t bytes;
    CUstream stream;
    bool per_thread; /* stream 0 is the thread's own */
};

static CUresult drive(const struct request *r, CUdeviceptr *pointer)
{
    const struct real_cuda *real = real_cuda();
    if (r->pool)
        return (r->per_thread ? real->cuMemAllocFromPoolAsync_ptsz : real->cuMemAllocFromPoolAsync)(
            pointer, r->bytes, r->pool, r->stream);
    return (r->per_thread ? real->cuMemAllocAsync_ptsz : real->cuMemAllocAsync)(pointer, r->bytes,
                                                                                r->stream);
}

static void free_again(const struct request *r, CUdeviceptr pointer)
{
    const struct real_cuda *real = real_cuda();
    CUresult (*drop)(CUdeviceptr, CUstream) =
        r->per_thread ? real->cuMemFreeAsync_ptsz : real->cuMemFreeAsync;
    if (drop)
        (void)drop(pointer, r->stream);
}

/* Waits for what the stream has done already, so for nothing; false: it has not come so far, and
 * might never without the caller. */
static bool synchronize(const struct request *r)
{
    const struct real_cuda *real = real_cuda();
    CUresult (*ask)(CUstream) = r->per_thread ? real->cuStreamQuery_ptsz : real->cuStreamQuery;
    CUresult (*wait)(CUstream) =
        r->per_thread ? real->cuStreamSynchronize_ptsz : real->cuStreamSynchronize;
    return ask && wait && ask(r->stream) == CUDA_SUCCESS && wait(r->stream) == CUDA_SUCCESS;
}

/* Bytes that are free in the pool, at least; asks only when the last answer will not do. */
static uint64_t free_room(struct ap_pool *pool, uint64_t wanted)
{
    uint64_t charged = atomic_load_explicit(&pool->charged, memory_order_relaxed), used;
    if (wanted > charged)
        return charged > pool->in_use ? charged - pool->in_use : 0;
    if (pool->in_use > charged - wanted && ap_pool_ask(pool, AP_POOL_USED, &used))
        pool->in_use = used;
    return charged > pool->in_use ? charged - pool->in_use : 0;
}

/* The share is full but for the pool's own free room. */
static bool squeeze(struct ap_process *process, struct ap_pool *pool, uint64_t bytes,
                    uint64_t *ahead)
{
    uint64_t used;
    ap_pool_trim(process, pool);
    if (ap_pool_ask(pool, AP_POOL_USED, &used))
        pool->in_use = used;
    uint64_t whole = ap_chunks(bytes), room = free_room(pool, bytes);
    if (ap_gpu_reserve(process, pool->gpu, whole)) {
        *ahead = whole;
        return true;
    }
    if (bytes <= room)
        return true;
    uint64_t part = ap_chunks(bytes - room);
    if (part == whole || !ap_gpu_reserve(process, pool->gpu, part))
        return false;
    *ahead = part;
    return true;
}

/* Charges in advance what the pool may take for the request. */
static bool prepare(struct ap_process *process, struct ap_pool *pool, const struct request *r,
                    uint64_t *ahead)
{
    uint64_t room = free_room(pool, r->bytes);
    *ahead = 0;
    if (r->bytes <= room && r->bytes <= AP_CHUNK)
        return true;
    if (ap_gpu_reserve(process, pool->gpu, ap_chunks(r->bytes))) {
        *ahead = ap_chunks(r->bytes);
        return true;
    }
    return r->bytes <= room || squeeze(process, pool, r->bytes, ahead);
}

/* After the driver's call: the charge becomes what the pool has. *pointer becomes 0 if what was
 * given is freed only when the stream gets there; till then the charge is what the pool has. */
static CUresult settle(struct ap_process *process, struct ap_pool *pool, const struct request *r,
                       uint64_t ahead, CUresult result, CUdeviceptr *pointer)
{
    uint64_t charged = atomic_load_explicit(&pool->charged, memory_order_relaxed), reserved;
    if (!ap_pool_ask(pool, AP_POOL_RESERVED, &reserved))
        reserved = result == CUDA_SUCCESS ? charged + ap_chunks(r->bytes) : charged;
    if (ap_follow(process, pool->gpu, &pool->charged, ahead, reserved)) {
        pool->in_use += result == CUDA_SUCCESS ? r->bytes : 0;
        return result;
    }
    /* Also a refusal of the driver's may leave the pool with all that it could get (measured). */
    if (result == CUDA_SUCCESS) {
        free_again(r, *pointer);
        *pointer = synchronize(r) ? *pointer : 0;
    }
    ap_pool_trim(process, pool);
    return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* One try: *ours says that a refusal is not the driver's. */
static CUresult attempt(struct ap_process *process, struct ap_pool *pool, const struct request *r,
                        CUdeviceptr *given, bool *ours)
{
    uint64_t ahead;
    *ours = true;
    if (!prepare(process, pool, r, &ahead))
        return CUDA_ERROR_OUT_OF_MEMORY;
    ap_gpu_move_begins(pool->gpu);
    CUresult driver = drive(r, given);
    *ours = driver == CUDA_SUCCESS;
    CUresult result = settle(process, pool, r, ahead, driver, given);
    ap_gpu_move_ends(pool->gpu);
    return result;
}

static CUresult draw_once(struct ap_process *process, struct ap_pool *pool,
                          const struct request *r, CUdeviceptr *pointer, bool *ours)
{
    CUdeviceptr given = 0;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    *ours = false;
    ap_lock(&pool->lock);
    if (!pool->ended) {
        result = attempt(process, pool, r, &given, ours);
        /* What was given and taken back has been waited for, and may have left room. */
        if (result != CUDA_SUCCESS && *ours && given)
            result = attempt(process, pool, r, &given, ours);
    }
    ap_unlock(&pool->lock);
    if (result == CUDA_SUCCESS)
        *pointer = given;
    return result;
}

/* The least that the pool must grow by for the request. */
static uint64_t lacks(struct ap_pool *pool, uint64_t bytes)
{
    ap_lock(&pool->lock);
    uint64_t room = pool->ended ? 0 : free_room(pool, bytes);
    ap_unlock(&pool->lock);
    return ap_chunks(bytes > room ? bytes - room : bytes);
}

static CUresult draw(struct ap_process *process, struct ap_pool *pool, const struct request *r,
                     CUdeviceptr *pointer)
{
    bool ours;
    CUresult result = draw_once(process, pool, r, pointer, &ours);
    if (result != CUDA_SUCCESS && ours &&
        ap_gpu_await_dead(process, pool->gpu, lacks(pool, r->bytes)))
        result = draw_once(process, pool, r, pointer, &ours);
    if (result != CUDA_SUCCESS && ours)
        ap_gpu_count_denied(pool->gpu);
    return result;
}

/* 0 and the driver's two names for default streams belong to the current context. */
static bool is_default(CUstream stream)
{
    return (uintptr_t)stream <= 2;
}

static CUresult device_of_context(CUcontext context, CUdevice *device)
{
    const struct real_cuda *real = real_cuda();
    CUcontext same;
    if (!real->cuCtxPushCurrent_v2 || !real->cuCtxPopCurrent_v2)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuCtxPushCurrent_v2(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuCtxGetDevice(device);
    (void)real->cuCtxPopCurrent_v2(&same);
    return result;
}

static CUresult device_of(struct ap_process *process, CUstream stream, CUdevice *device)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    *device = 0;
    if (ap_device_count(process) == 1)
        return CUDA_SUCCESS;
    if (!real->cuCtxGetDevice || !real->cuStreamGetCtx)
        return CUDA_ERROR_NOT_FOUND;
    if (is_default(stream))
        return real->cuCtxGetDevice(device);
    if (real->cuStreamGetDevice)
        return real->cuStreamGetDevice(stream, device);
    CUresult result = real->cuStreamGetCtx(stream, &context);
    return result == CUDA_SUCCESS ? device_of_context(context, device) : result;
}

/* NULL with CUDA_SUCCESS: there are too many pools. */
static CUresult pool_of(struct ap_process *process, const struct request *r, struct ap_pool **pool)
{
    CUmemoryPool handle = r->pool;
    CUdevice device = 0;
    *pool = handle ? ap_pool_find(process, handle) : NULL;
    if (*pool)
        return CUDA_SUCCESS;
    CUresult result = device_of(process, r->stream, &device);
    if (result == CUDA_SUCCESS && !handle)
        result = ap_pool_current(process, device, &handle);
    if (result == CUDA_SUCCESS)
        *pool = ap_pool_of(process, handle, device);
    return result;
}

static CUresult allocate(CUdeviceptr *pointer, const struct request *r)
{
    struct ap_process *process = ap_process();
    struct ap_pool *pool = NULL;
    if (!process)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!pointer || r->bytes == 0 || ap_device_count(process) == 0 ||
        ap_capturing(process, r->stream, r->per_thread))
        return drive(r, pointer);
    CUresult result = pool_of(process, r, &pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (pool && pool->kind == AP_POOL_UNCHARGED)
        return drive(r, pointer);
    return pool && pool->gpu ? draw(process, pool, r, pointer) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    if (!real_cuda()->cuMemAllocAsync)
        return CUDA_ERROR_NOT_FOUND;
    return allocate(pointer, &(struct request){NULL, bytes, stream, false});
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    if (!real_cuda()->cuMemAllocAsync_ptsz)
        return CUDA_ERROR_NOT_FOUND;
    return allocate(pointer, &(struct request){NULL, bytes, stream, true});
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                 CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuMemAllocFromPoolAsync)
        return CUDA_ERROR_NOT_FOUND;
    if (!pool)
        return real->cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
    return allocate(pointer, &(struct request){pool, bytes, stream, false});
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                      CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuMemAllocFromPoolAsync_ptsz)
        return CUDA_ERROR_NOT_FOUND;
    if (!pool)
        return real->cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream);
    return allocate(pointer, &(struct request){pool, bytes, stream, true});
}
