#include "deferred.h"

#include <stdatomic.h>

#include "capture.h"
#include "charge.h"
#include "pool.h"

static uint64_t number_of(const struct CUstream_st *stream)
{
    return (uint64_t)(uintptr_t)stream;
}

/* Whether the stream has done all its work; a look that no capture notices. */
static bool is_done(CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    int status = 0;
    return real->cuStreamQuery && real->cuStreamIsCapturing && real->cuStreamSynchronize &&
           real->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == 0 &&
           real->cuStreamQuery(stream) == CUDA_SUCCESS &&
           real->cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

/* With the lock. */
static void drop(struct ap_process *process, uint32_t at)
{
    uint32_t last = atomic_load(&process->deferred_count) - 1;
    ap_charge_drop(process, &process->deferred[at].record);
    process->deferred[at] = process->deferred[last];
    atomic_store(&process->deferred_count, last);
}

bool ap_deferred_look(struct ap_process *process)
{
    bool any = false;
    if (atomic_load_explicit(&process->deferred_count, memory_order_relaxed) == 0 ||
        !ap_try_lock(&process->deferred_lock))
        return false;
    int mode = ap_capture_relax(process);
    for (uint32_t at = 0; at < atomic_load(&process->deferred_count);) {
        if (is_done((CUstream)(uintptr_t)process->deferred[at].stream)) {
            drop(process, at);
            any = true;
        } else {
            at++;
        }
    }
    ap_capture_restore(mode);
    ap_unlock(&process->deferred_lock);
    return any;
}

static bool defer(struct ap_process *process, const struct ap_record *record, CUstream stream)
{
    (void)ap_device_count(process);
    ap_lock(&process->deferred_lock);
    uint32_t count = atomic_load(&process->deferred_count);
    bool room = count < AP_DEFERRED_MAX;
    if (room) {
        process->deferred[count] =
            (struct ap_deferred){.record = *record, .stream = number_of(stream)};
        atomic_store(&process->deferred_count, count + 1);
    }
    ap_unlock(&process->deferred_lock);
    return room;
}

/* A thread's own default stream cannot be asked about by another thread, so its end is waited for
 * here; so it is when there is no room to remember more. */
static void freed(struct ap_process *process, const struct ap_record *record, CUstream stream,
                  bool per_thread)
{
    const struct real_cuda *real = real_cuda();
    bool own = number_of(stream) == 2 || (per_thread && !stream);
    if (!own && (defer(process, record, stream) ||
                 (ap_deferred_look(process) && defer(process, record, stream))))
        return;
    CUresult (*wait)(CUstream) =
        per_thread ? real->cuStreamSynchronize_ptsz : real->cuStreamSynchronize;
    if (wait)
        (void)wait(stream);
    ap_charge_drop(process, record);
}

/* The record is taken out first, for the reason that ap_charge_free gives. */
static CUresult free_async(CUdeviceptr pointer, CUstream stream, bool per_thread)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    struct ap_record record, old;
    bool had_old = false;
    bool known = process && ap_table_take(&process->pointers, pointer, &record);
    CUresult (*driver)(CUdeviceptr, CUstream) =
        per_thread ? real->cuMemFreeAsync_ptsz : real->cuMemFreeAsync;
    CUresult result = driver(pointer, stream);
    if (known && result == CUDA_SUCCESS)
        freed(process, &record, stream, per_thread);
    else if (known)
        (void)ap_table_put(&process->pointers, &record, &old, &had_old);
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    return real_cuda()->cuMemFreeAsync ? free_async(pointer, stream, false) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    return real_cuda()->cuMemFreeAsync_ptsz ? free_async(pointer, stream, true)
                                            : CUDA_ERROR_NOT_FOUND;
}

/* Nobody can ask about a stream that is no more, so what hangs on it is waited for. */
static void leave_stream(CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    bool waited = false;
    if (!process || atomic_load(&process->deferred_count) == 0 || !real->cuStreamSynchronize)
        return;
    ap_lock(&process->deferred_lock);
    for (uint32_t at = 0; at < atomic_load(&process->deferred_count);) {
        if (process->deferred[at].stream != number_of(stream)) {
            at++;
            continue;
        }
        if (!waited)
            (void)real->cuStreamSynchronize(stream);
        waited = true;
        drop(process, at);
    }
    ap_unlock(&process->deferred_lock);
}

CUresult cuStreamDestroy(CUstream stream)
{
    if (!real_cuda()->cuStreamDestroy)
        return CUDA_ERROR_NOT_FOUND;
    leave_stream(stream);
    return real_cuda()->cuStreamDestroy(stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (!real_cuda()->cuStreamDestroy_v2)
        return CUDA_ERROR_NOT_FOUND;
    leave_stream(stream);
    return real_cuda()->cuStreamDestroy_v2(stream);
}
