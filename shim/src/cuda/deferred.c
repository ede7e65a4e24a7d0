#include "deferred.h"

#include <stdatomic.h>

#include "capture.h"
#include "charge.h"
#include "context.h"
#include "pool.h"

#define NO_TIMES 2 /* CU_EVENT_DISABLE_TIMING */

/* A context that is being ended has an odd number here, which no handle has: nothing may be asked
 * about what is in it. */
static bool is_ending(uint64_t context)
{
    return context & 1;
}

/* Whether the stream had come as far as the event says. Waits for nothing: an event that has
 * happened stays so, whatever is put into its stream later. */
static bool is_done(CUevent event)
{
    const struct real_cuda *real = real_cuda();
    return real->cuEventQuery(event) == CUDA_SUCCESS &&
           real->cuEventSynchronize(event) == CUDA_SUCCESS;
}

static void end_event(uint64_t event)
{
    const struct real_cuda *real = real_cuda();
    CUevent handle = (CUevent)(uintptr_t)event;
    (void)(real->cuEventDestroy_v2 ? real->cuEventDestroy_v2(handle)
                                   : real->cuEventDestroy(handle));
}

/* They are in order of release, so that once one of a stream is not done its later ones need
 * not be asked. */
bool ap_deferred_look(struct ap_process *process)
{
    bool any = false;
    uint32_t kept = 0;
    uint64_t busy = 0;
    if (atomic_load_explicit(&process->deferred_count, memory_order_relaxed) == 0 ||
        !ap_try_lock(&process->deferred_lock))
        return false;
    int mode = ap_capture_relax(process);
    uint32_t count = atomic_load(&process->deferred_count);
    for (uint32_t at = 0; at < count; at++) {
        struct ap_deferred *one = &process->deferred[at];
        bool asked = !is_ending(one->context) && !(busy && one->stream == busy);
        if (asked && is_done((CUevent)(uintptr_t)one->event)) {
            end_event(one->event);
            ap_charge_drop(process, &one->record);
            any = true;
        } else {
            busy = asked ? one->stream : busy;
            process->deferred[kept++] = *one;
        }
    }
    atomic_store(&process->deferred_count, kept);
    ap_capture_restore(mode);
    ap_unlock(&process->deferred_lock);
    return any;
}

void ap_deferred_retag(struct ap_process *process, uint64_t from, uint64_t to)
{
    ap_lock(&process->deferred_lock);
    for (uint32_t at = 0; at < atomic_load(&process->deferred_count); at++) {
        struct ap_deferred *one = &process->deferred[at];
        one->context = one->context == from ? to : one->context;
        one->record.context = one->record.context == from ? to : one->record.context;
    }
    ap_unlock(&process->deferred_lock);
}

/* Its streams are done, and its events are gone with it. */
void ap_deferred_context_ended(struct ap_process *process, uint64_t context)
{
    uint32_t kept = 0;
    ap_lock(&process->deferred_lock);
    uint32_t count = atomic_load(&process->deferred_count);
    for (uint32_t at = 0; at < count; at++) {
        struct ap_deferred *one = &process->deferred[at];
        if (one->context == context || one->record.context == context)
            ap_charge_drop(process, &one->record);
        else
            process->deferred[kept++] = *one;
    }
    atomic_store(&process->deferred_count, kept);
    ap_unlock(&process->deferred_lock);
}

static bool defer(struct ap_process *process, const struct ap_deferred *one)
{
    ap_lock(&process->deferred_lock);
    uint32_t count = atomic_load(&process->deferred_count);
    bool room = count < AP_DEFERRED_MAX;
    if (room) {
        process->deferred[count] = *one;
        atomic_store(&process->deferred_count, count + 1);
    }
    ap_unlock(&process->deferred_lock);
    return room;
}

/* Where the stream is now. False: it cannot be marked. */
static bool mark(struct ap_deferred *one, CUstream stream, bool per_thread)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    CUevent event = NULL;
    CUresult (*record)(CUevent, CUstream) =
        per_thread ? real->cuEventRecord_ptsz : real->cuEventRecord;
    if (!record || !real->cuEventCreate || !real->cuEventQuery || !real->cuEventSynchronize ||
        !real->cuEventDestroy || !real->cuCtxGetCurrent ||
        real->cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
        real->cuEventCreate(&event, NO_TIMES) != CUDA_SUCCESS)
        return false;
    one->event = ap_number_of(event);
    one->stream = ap_number_of(stream);
    one->context = ap_number_of(context);
    if (record(event, stream) == CUDA_SUCCESS)
        return true;
    end_event(one->event);
    return false;
}

/* What cannot be followed stays charged until its context ends, or until the driver gave its
 * address to another allocation for which the same holds. It is kept under a number in its first
 * 512 bytes that no pointer has. */
static void keep(struct ap_process *process, const struct ap_record *record)
{
    struct ap_record kept = *record, old;
    bool had_old = false;
    kept.key |= 1;
    if (kept.kind == AP_SMALL && kept.bytes > 1)
        kept.bytes--; /* it ends where it did */
    (void)ap_table_put(&process->pointers, &kept, &old, &had_old);
    if (had_old)
        ap_charge_drop(process, &old);
}

static void freed(struct ap_process *process, const struct ap_record *record, CUstream stream,
                  bool per_thread)
{
    struct ap_deferred one = {.record = *record};
    (void)ap_device_count(process);
    int mode = ap_capture_relax(process);
    bool marked = mark(&one, stream, per_thread);
    ap_capture_restore(mode);
    if (!marked) {
        keep(process, record);
        return;
    }
    if (defer(process, &one) || (ap_deferred_look(process) && defer(process, &one)))
        return;
    end_event(one.event);
    keep(process, record);
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
