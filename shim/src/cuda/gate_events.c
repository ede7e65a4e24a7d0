/* Events behind the work, by which it is known what is done and how long it took.
 *
 * They have times: the difference of two is the GPU's own and exact, also when nobody looked at the
 * right moment. On our clock an event was reached between when it was last seen not to be and when
 * it was seen to be; within these bounds the difference to the event before tells.
 *
 * Events and their errors are ours alone: what the driver says about them is never passed on, and
 * where it refuses one the work is taken to be done when it should be. */
#include <stdatomic.h>

#include "../common/sys.h"
#include "capture.h"
#include "gate.h"
#include "gate_state.h"
#include "truth.h"

#define NOT_READY 600 /* CUDA_ERROR_NOT_READY */
#define STREAMS 8u    /* with unfinished work that one look tells apart */
#define STREAM_NON_BLOCKING 1 /* CU_STREAM_NON_BLOCKING */

static uint64_t number_of_stream(CUstream stream, bool per_thread)
{
    return (uint64_t)(uintptr_t)stream << 1 | (per_thread ? 1 : 0);
}

static void destroy(CUevent event)
{
    const struct real_cuda *real = real_cuda();
    (void)(real->cuEventDestroy_v2 ? real->cuEventDestroy_v2(event) : real->cuEventDestroy(event));
}

/* With the gate's lock. NULL: there are too many contexts. */
static struct ap_events *events_of(struct ap_gate *gate, uint64_t context)
{
    struct ap_events *free = NULL;
    for (uint32_t i = 0; i < AP_EVENT_CONTEXTS; i++) {
        if (gate->contexts[i].context == context)
            return &gate->contexts[i];
        if (gate->contexts[i].context == 0 && !free)
            free = &gate->contexts[i];
    }
    if (free)
        *free = (struct ap_events){.context = context};
    return free;
}

/* An event of the current context, whose number in ap_gate.contexts goes to *which. */
static CUevent take_event(struct ap_gate *gate, uint32_t *which)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    CUevent event = NULL;
    if (!real->cuCtxGetCurrent || real->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return NULL;
    ap_lock(&gate->lock);
    struct ap_events *events = events_of(gate, (uint64_t)(uintptr_t)context);
    if (events && events->count > 0)
        event = events->free[--events->count];
    ap_unlock(&gate->lock);
    if (!events)
        return NULL;
    *which = (uint32_t)(events - gate->contexts);
    if (!event && real->cuEventCreate && real->cuEventCreate(&event, 0) != CUDA_SUCCESS)
        return NULL;
    return event;
}

/* With the gate's lock. True: it was kept for the next time. */
static bool keep_event(struct ap_gate *gate, uint32_t which, CUevent event)
{
    struct ap_events *events = &gate->contexts[which];
    if (events->count == AP_FREE_EVENTS)
        return false;
    events->free[events->count++] = event;
    return true;
}

static void put_back(struct ap_gate *gate, uint32_t which, CUevent event)
{
    ap_lock(&gate->lock);
    bool kept = keep_event(gate, which, event);
    ap_unlock(&gate->lock);
    if (!kept)
        destroy(event);
}

/* A mark for this work. False: no room for it. With the gate's lock. */
static bool push(struct ap_gate *gate, const struct ap_mark *work, CUevent event, uint32_t which,
                 uint64_t stream)
{
    if (gate->tail - gate->head == AP_MARKS)
        return false;
    struct ap_mark *mark = ap_gate_mark_at(gate, gate->tail++);
    *mark = *work;
    mark->event = event;
    mark->context = which;
    mark->stream = stream;
    mark->queued = mark->seen = ap_now_ns();
    mark->done = false;
    return true;
}

/* What is open becomes a mark. False: no room for it, or there is nothing. */
static bool push_open(struct ap_gate *gate, CUevent event, uint32_t which, uint64_t stream)
{
    ap_lock(&gate->lock);
    bool pushed = gate->open.count > 0 && push(gate, &gate->open, event, which, stream);
    if (pushed) {
        gate->open.count = 0;
        gate->open.work = 0;
    }
    ap_unlock(&gate->lock);
    return pushed;
}

/* Nothing will tell how long it takes. */
static void assume(struct ap_gate *gate)
{
    ap_lock(&gate->lock);
    ap_estimate_assume(&gate->estimates, gate->open.items, gate->open.count, AP_UNKNOWN_NS);
    ap_unlock(&gate->lock);
}

/* An event of the current context, recorded in the stream; NULL: the driver would not. */
static CUevent recorded(struct ap_gate *gate, CUstream stream, bool per_thread, uint32_t *which)
{
    const struct real_cuda *real = real_cuda();
    CUresult (*driver)(CUevent, CUstream) =
        per_thread ? real->cuEventRecord_ptsz : real->cuEventRecord;
    CUevent event = take_event(gate, which);
    if (!event || (driver && driver(event, stream) == CUDA_SUCCESS))
        return event;
    put_back(gate, *which, event);
    return NULL;
}

static bool record(struct ap_gate *gate, CUstream stream, bool per_thread)
{
    uint32_t which = 0;
    CUevent event = recorded(gate, stream, per_thread, &which);
    if (!event)
        return false;
    if (!push_open(gate, event, which, number_of_stream(stream, per_thread)))
        put_back(gate, which, event); /* no room: it stays open, for the next mark */
    return true;
}

/* A stream of another context than the current one takes that one's events only. */
static bool record_in_its_context(struct ap_gate *gate, CUstream stream, bool per_thread)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    if (!real->cuStreamGetCtx || !real->cuCtxPushCurrent_v2 || !real->cuCtxPopCurrent_v2 ||
        real->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS ||
        real->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return false;
    bool good = record(gate, stream, per_thread);
    (void)real->cuCtxPopCurrent_v2(&context);
    return good;
}

void ap_gate_mark(struct ap_process *process, struct ap_gate *gate, CUstream stream,
                  bool per_thread)
{
    int mode = ap_capture_relax(process);
    if (!record(gate, stream, per_thread) && !record_in_its_context(gate, stream, per_thread))
        assume(gate);
    ap_capture_restore(mode);
    (void)ap_gate_look(process, gate);
}

/* The context's stream for what is no work of the program's; NULL: the driver would not. What the
 * program copies from the host, which takes no time of the GPU, holds up nothing in it. */
static CUstream own_stream(struct ap_process *process, struct ap_gate *gate, uint32_t which)
{
    const struct real_cuda *real = real_cuda();
    struct ap_events *events = &gate->contexts[which];
    CUstream made = NULL, none = NULL;
    CUstream stream = atomic_load_explicit(&events->stream, memory_order_acquire);
    if (stream || !real->cuStreamCreate ||
        real->cuStreamCreate(&made, STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return stream;
    if (atomic_compare_exchange_strong(&events->stream, &none, made)) {
        /* What the driver took is the share's, even where it does not fit: the context keeps it. */
        ap_truth_refresh(process, gate->gpu, 0);
        return made;
    }
    if (real->cuStreamDestroy_v2)
        (void)real->cuStreamDestroy_v2(made);
    return none;
}

static void anchor(struct ap_process *process, struct ap_gate *gate)
{
    const struct real_cuda *real = real_cuda();
    static const struct ap_mark nothing;
    uint32_t which = 0;
    CUevent event = take_event(gate, &which);
    CUstream stream = event ? own_stream(process, gate, which) : NULL;
    bool pushed = stream && real->cuEventRecord &&
                  real->cuEventRecord(event, stream) == CUDA_SUCCESS;
    if (pushed) {
        ap_lock(&gate->lock);
        pushed = push(gate, &nothing, event, which, number_of_stream(stream, false));
        ap_unlock(&gate->lock);
    }
    if (event && !pushed)
        put_back(gate, which, event);
}

void ap_gate_anchor(struct ap_process *process, struct ap_gate *gate)
{
    int mode = ap_capture_relax(process);
    anchor(process, gate);
    ap_capture_restore(mode);
}

/* When the event was reached. `since`: nanoseconds since the context's last one, below 0: not
 * known. With the gate's lock. */
static uint64_t reached_at(const struct ap_gate *gate, const struct ap_mark *mark, double since,
                           uint64_t now)
{
    const struct ap_events *events = &gate->contexts[mark->context];
    uint64_t at = now;
    if (since >= 0)
        at = events->last_at + (uint64_t)since;
    else if (ap_estimate_all_known(&gate->estimates, mark->items, mark->count) &&
             now > gate->from + 4 * mark->work)
        at = gate->from + mark->work;
    if (at < mark->seen)
        at = mark->seen;
    return at < now ? at : now;
}

static double since_last(const struct ap_events *events, CUevent event)
{
    const struct real_cuda *real = real_cuda();
    float milliseconds = 0;
    if (!events->last || !real->cuEventElapsedTime ||
        real->cuEventElapsedTime(&milliseconds, events->last, event) != CUDA_SUCCESS)
        return -1;
    return milliseconds > 0 ? (double)milliseconds * 1e6 : 0;
}

/* It becomes the context's last event, and the one before is free. */
static void reached(struct ap_gate *gate, struct ap_mark *mark)
{
    struct ap_events *events = &gate->contexts[mark->context];
    double since = since_last(events, mark->event);
    CUevent before = events->last;
    ap_lock(&gate->lock);
    uint64_t at = reached_at(gate, mark, since, ap_now_ns());
    events->last = mark->event;
    events->last_at = at;
    if (since >= 0)
        gate->anchored = at;
    ap_gate_done(gate, mark, at);
    bool kept = !before || keep_event(gate, mark->context, before);
    ap_unlock(&gate->lock);
    if (!kept)
        destroy(before);
}

/* Only who has the lock of the looks changes marks that are in the ring, and the last events. An
 * error is as good as the end: such a context does no more work. */
static void look(struct ap_gate *gate, uint32_t head, uint32_t tail)
{
    const struct real_cuda *real = real_cuda();
    uint64_t busy[STREAMS];
    uint32_t streams = 0;
    for (uint32_t i = head; i != tail && streams < STREAMS; i++) {
        struct ap_mark *mark = ap_gate_mark_at(gate, i);
        bool waits = mark->done;
        for (uint32_t j = 0; j < streams; j++)
            waits = waits || busy[j] == mark->stream;
        if (waits)
            continue;
        uint64_t now = ap_now_ns();
        if (real->cuEventQuery(mark->event) != NOT_READY) {
            reached(gate, mark);
            continue;
        }
        mark->seen = now;
        busy[streams++] = mark->stream;
    }
}

static void advance(struct ap_gate *gate)
{
    while (gate->head != gate->tail && ap_gate_mark_at(gate, gate->head)->done)
        gate->head++;
}

bool ap_gate_look(struct ap_process *process, struct ap_gate *gate)
{
    if (!real_cuda()->cuEventQuery || !ap_try_lock(&process->gate_look))
        return false;
    int mode = ap_capture_relax(process);
    ap_lock(&gate->lock);
    uint32_t head = gate->head, tail = gate->tail;
    gate->looked = ap_now_ns();
    ap_unlock(&gate->lock);
    look(gate, head, tail);
    ap_lock(&gate->lock);
    advance(gate);
    ap_unlock(&gate->lock);
    ap_capture_restore(mode);
    ap_unlock(&process->gate_look);
    return true;
}

void ap_gate_before_end(struct ap_process *process)
{
    if (process && ap_gates_on())
        ap_lock(&process->gate_look);
}

void ap_gate_after_end(struct ap_process *process)
{
    if (process && ap_gates_on())
        ap_unlock(&process->gate_look);
}

/* Its work is done or was given up. */
static void drop(struct ap_gate *gate, uint32_t which)
{
    for (uint32_t i = gate->head; i != gate->tail; i++) {
        struct ap_mark *mark = ap_gate_mark_at(gate, i);
        if (mark->done || mark->context != which)
            continue;
        ap_estimate_assume(&gate->estimates, mark->items, mark->count, AP_UNKNOWN_NS);
        gate->work -= mark->work < gate->work ? mark->work : gate->work;
        mark->done = true;
    }
    advance(gate);
    gate->contexts[which] = (struct ap_events){.context = 0};
}

void ap_gate_context_ended(struct ap_process *process, uint64_t context)
{
    uint32_t count = atomic_load_explicit(&process->gpu_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        struct ap_gate *gate = atomic_load(&process->gpus[i].gate);
        if (!gate)
            continue;
        ap_lock(&gate->lock);
        for (uint32_t which = 0; which < AP_EVENT_CONTEXTS; which++)
            if (gate->contexts[which].context == context)
                drop(gate, which);
        ap_unlock(&gate->lock);
    }
}
