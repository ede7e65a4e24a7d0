/* Work that takes time, on a card with `executes = yes`. All streams of a context are one queue:
 * its work runs in the order in which it was submitted, so that waiting for an event of another
 * stream of the context needs nothing. Elsewhere all work is done at once. */
#ifndef FAKE_CUDA_TIMELINE_H
#define FAKE_CUDA_TIMELINE_H

#include "graph.h"

struct cu_event {
	struct cu_wait wait;         /* of the stream, when it was recorded */
	struct cu_capture *captured; /* it was recorded into a graph */
	unsigned flags;
	bool recorded;
	uint64_t at;                 /* when it was reached, nanoseconds; 0: not yet */
	uint64_t item;               /* the work that it stands behind */
	CUcontext maker;             /* whose it is, */
	unsigned ends;               /* and how often that had ended when it was made */
	CUcontext ctx;               /* where it was recorded */
	struct cu_event *next, *previous;
};

/* With cu_lock held: at the beginning and the end of a context. */
CUresult cu_time_begin(CUcontext ctx);
void cu_time_end(CUcontext ctx);

/* The rest without locks. Submits work; waits first when the queue is full. */
void cu_time_submit(CUcontext ctx, CUstream stream, uint64_t length);

/* Whether a stream's work is done; a default stream's is all of its context's. Waits for it. */
bool cu_time_done(CUcontext ctx, CUstream stream);
void cu_time_wait(CUcontext ctx, CUstream stream);

void cu_time_record(CUcontext ctx, CUstream stream, CUevent event);
void cu_time_forget(CUevent event);
bool cu_time_reached(CUevent event);
void cu_time_wait_event(CUevent event);

/* What a stream does from now on comes after the event. */
void cu_time_after(CUcontext ctx, CUstream stream, CUevent event);

#endif
