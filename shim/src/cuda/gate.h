/* The gate: where a share's cores are limited by time, its work runs in its slots only.
 *
 * Every launch passes here first. It goes when it is the share's time and what is queued, with this
 * launch, will be done by the slot's end; else its thread sleeps, without a lock of ours or of the
 * driver's, until it may. How long work takes is learnt from events that are recorded behind it,
 * one for some 500 us of work. See docs/decisions/0025-time-division.md. */
#ifndef AP_CUDA_GATE_H
#define AP_CUDA_GATE_H

#include "../common/process.h"
#include "front.h"

/* Whether any share of this container has a schedule. Found out when the library is loaded; where
 * it is false no launch comes here. */
extern atomic_bool ap_gates_exist;
void ap_gates_look(void);

static inline bool ap_gates_on(void)
{
    return atomic_load_explicit(&ap_gates_exist, memory_order_relaxed);
}

/* A launch on its way. */
struct ap_pass {
    struct ap_gate *gate; /* NULL: nothing holds it */
    CUstream stream;
    bool per_thread;      /* of the two meanings of stream 0 */
    bool mark;            /* an event is to follow it */
    bool anchor;          /* an event is to come before it */
    uint64_t key;         /* what is launched; see estimate.h */
    uint32_t place;
    uint64_t time;        /* that it is expected to take */
    uint64_t began;       /* when, where nothing was queued before it; else 0 */
};

/* Waits until the launch may go; key 0: it need not wait. CUDA_SUCCESS, or the error to return. */
CUresult ap_gate_enter(struct ap_pass *pass, uint64_t key, CUstream stream, bool per_thread);

/* With the driver's result of the launch. */
void ap_gate_leave(const struct ap_pass *pass, CUresult result);

/* An executable graph has ended: its handle may come to mean another. */
void ap_gate_graph_ended(CUgraphExec exec);

/* The key of an executable graph. */
uint64_t ap_gate_graph_key(CUgraphExec exec);

/* Around a call of the driver's that may end a context: meanwhile nobody asks about events. */
void ap_gate_before_end(struct ap_process *process);
void ap_gate_after_end(struct ap_process *process);

/* Between the two: the context has ended, and its events with it. */
void ap_gate_context_ended(struct ap_process *process, uint64_t context);

#endif
