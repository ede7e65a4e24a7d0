/* What the files of the gate share: its state, one for each GPU whose shares have a schedule. It
 * lies in memory that a forked child has not got. */
#ifndef AP_CUDA_GATE_STATE_H
#define AP_CUDA_GATE_STATE_H

#include "../common/process.h"
#include "calendar.h"
#include "cuda.h"
#include "estimate.h"
#include "gate_math.h"

#define AP_MARKS 128u        /* events under way at once */
#define AP_EVENT_CONTEXTS 32u
#define AP_FREE_EVENTS 32u   /* kept for each context */

/* Work and the event behind it. Without work it is an anchor: an event that stands before all. */
struct ap_mark {
    CUevent event;
    uint64_t stream;   /* with its meaning of 0 */
    uint32_t context;  /* whose event it is: index in ap_gate.contexts */
    bool done;
    uint64_t queued;   /* when */
    uint64_t seen;     /* when it was last seen not to be done */
    uint64_t work;     /* time that is expected for it */
    uint32_t count;    /* of kinds */
    struct ap_item items[AP_ITEMS];
};

/* The events of a context. The driver ends them with it. */
struct ap_events {
    uint64_t context;  /* 0: free */
    uint32_t count;
    CUevent free[AP_FREE_EVENTS];
    CUstream _Atomic stream; /* for anchors; ends with the context, too */
    CUevent last;      /* that was seen to be reached, and when that was */
    uint64_t last_at;
};

struct ap_gate {
    struct ap_lock lock;      /* for all that follows; never held over a call of the driver's */
    struct ap_gpu *gpu;
    uint64_t generations;     /* of the schedules, summed up, of which the calendar is made */
    struct ap_calendar calendar;
    struct ap_window window;  /* the last one looked up */

    uint64_t from;            /* since when the GPU works on what is queued */
    uint64_t work;            /* expected for what is queued, that which is done since then too */
    uint64_t progress;        /* when something was last seen to be done, or the queue was empty */
    struct ap_mark open;      /* launches that no event follows yet */
    uint32_t head, tail;      /* of the ring: the marks under way */
    struct ap_mark ring[AP_MARKS];
    uint64_t marked;          /* when the last event was asked for */
    uint64_t looked;          /* when the events were last asked */
    uint64_t anchored;        /* when the last event was reached whose time is known exactly */

    uint32_t waiters;         /* threads that the gate holds back */
    uint64_t idle;            /* since when they are and nothing was launched; 0: none is */
    uint64_t others_at;       /* when the other processes' queues were looked up, */
    uint64_t others_last;     /* and when the last of them will be done, or was */
    uint64_t wanted;          /* as it was last noted in the ledger */

    struct ap_events contexts[AP_EVENT_CONTEXTS];
    struct ap_estimates estimates;
};

static inline struct ap_mark *ap_gate_mark_at(struct ap_gate *gate, uint32_t index)
{
    return &gate->ring[index % AP_MARKS];
}

/* gate_account.c: all with the gate's lock. */

/* Time of the share in the ledger. Of several shares of the GPU the first keeps the account. */
struct apportion_ledger_cores *ap_gate_cores(const struct ap_gate *gate);

/* The carry, in its bounds whatever the ledger says. */
int64_t ap_gate_carry(const struct ap_gate *gate);

/* The work of `mark` was done at `at`. */
void ap_gate_done(struct ap_gate *gate, struct ap_mark *mark, uint64_t at);

/* The GPU was held idle in the share's time up to now: that is owed to it. */
void ap_gate_count_idle(struct ap_gate *gate, uint64_t now);

/* How long what the other processes of the share have queued will take, as they say; `exactly`: as
 * they say now. */
uint64_t ap_gate_others_left(struct ap_gate *gate, uint64_t now, bool exactly);

/* Tells them what this one has. */
void ap_gate_publish(struct ap_gate *gate);

/* Without the lock: the driver's call of a launch before which nothing was queued has come back. */
void ap_gate_begun(struct ap_gate *gate, const struct ap_pass *pass);

/* gate_events.c: without the lock. */

/* Puts an event behind what was launched, in this stream. */
void ap_gate_mark(struct ap_process *process, struct ap_gate *gate, CUstream stream,
                  bool per_thread);

/* Puts an event in front of what will be launched when nothing is queued. It is reached when the
 * context has the GPU: at once, or after what a neighbour still has there. */
void ap_gate_anchor(struct ap_process *process, struct ap_gate *gate);

/* Looks which events were reached. Waits for nothing. False: another thread is at it. */
bool ap_gate_look(struct ap_process *process, struct ap_gate *gate);

#endif
