#define _GNU_SOURCE
#include "timeline.h"
#include "mps.h"
#include "card.h"

#include <stdlib.h>

enum { EVENT_NS = 2100 }; /* of the GPU (H200) */

static unsigned key_of(CUcontext ctx)
{
	return cu_device(ctx->device)->gpu.key;
}

static void take_out(CUevent event)
{
	CUcontext ctx = event->ctx;
	if (!ctx)
		return;
	*(event->previous ? &event->previous->next : &ctx->first) = event->next;
	*(event->next ? &event->next->previous : &ctx->last) = event->previous;
	event->ctx = NULL;
}

/* By their work's number, which is nearly the order in which they come. */
static void put_in(CUcontext ctx, CUevent event)
{
	CUevent before = ctx->last;
	while (before && before->item > event->item)
		before = before->previous;
	event->ctx = ctx;
	event->previous = before;
	event->next = before ? before->next : ctx->first;
	*(before ? &before->next : &ctx->first) = event;
	*(event->next ? &event->next->previous : &ctx->last) = event;
}

/* Gives events the times of their work, before other work takes its place on record. */
static void harvest(CUcontext ctx)
{
	const struct fg_queue *q = ctx->queue;
	for (CUevent e; (e = ctx->first) && e->item <= q->done;) {
		e->at = q->item[(e->item - 1) % FG_DEPTH].done;
		take_out(e);
	}
}

/* The card, locked and brought up to the present; NULL: work takes no time here. */
static struct fg_card *enter(CUcontext ctx)
{
	if (!ctx || !__atomic_load_n(&ctx->queue, __ATOMIC_ACQUIRE))
		return NULL;
	unsigned key = key_of(ctx);
	fg_reap(key, ctx->queue);
	fg_card_enter(key);
	if (!ctx->queue) {
		fg_card_leave(key);
		return NULL;
	}
	harvest(ctx);
	return fg_card(key);
}

static void leave(CUcontext ctx)
{
	fg_card_leave(key_of(ctx));
}

CUresult cu_time_begin(CUcontext ctx)
{
	const struct fg_gpu *gpu = &cu_device(ctx->device)->gpu;
	unsigned percent;
	if (!gpu->executes)
		return CUDA_SUCCESS;
	bool mps = cu_mps(&percent);
	ctx->queue = fg_queue_open(gpu, percent, mps);
	return ctx->queue ? CUDA_SUCCESS : CUDA_UNKNOWN;
}

/* Its work does not go on, and nobody waits for it any more. */
void cu_time_end(CUcontext ctx)
{
	if (!enter(ctx))
		return;
	struct fg_queue *queue = ctx->queue;
	for (CUevent e; (e = ctx->first);) {
		e->at = fg_now();
		take_out(e);
	}
	__atomic_store_n(&ctx->queue, NULL, __ATOMIC_RELEASE);
	leave(ctx);
	fg_queue_close(key_of(ctx), queue);
}

static uint64_t last_of(CUcontext ctx, CUstream stream)
{
	return cu_is_stream(stream) ? stream->last : ctx->queue->pushed;
}

/* With the card locked, which it gives up meanwhile. False: the context has ended. */
static bool await(CUcontext ctx, struct fg_card *card, uint64_t item)
{
	while (ctx->queue && ctx->queue->done < item) {
		/* Another thread may end the context. */
		uint64_t when = fg_earliest(card, ctx->queue, item), most = fg_now() + 100000000;
		leave(ctx);
		fg_sleep_until(when < most ? when : most);
		if (!enter(ctx))
			return false;
	}
	return true;
}

void cu_time_submit(CUcontext ctx, CUstream stream, uint64_t length)
{
	if (cu_is_stream(stream))
		ctx = stream->ctx;
	struct fg_card *card = enter(ctx);
	uint64_t item = 0;
	while (card && !(item = fg_push(ctx->queue, length)))
		if (!await(ctx, card, ctx->queue->done + 1))
			return;
	if (!card)
		return;
	if (cu_is_stream(stream))
		stream->last = item;
	leave(ctx);
}

bool cu_time_done(CUcontext ctx, CUstream stream)
{
	if (cu_is_stream(stream))
		ctx = stream->ctx;
	if (!enter(ctx))
		return true;
	bool done = last_of(ctx, stream) <= ctx->queue->done;
	leave(ctx);
	return done;
}

void cu_time_wait(CUcontext ctx, CUstream stream)
{
	if (cu_is_stream(stream))
		ctx = stream->ctx;
	struct fg_card *card = enter(ctx);
	if (card && await(ctx, card, last_of(ctx, stream)))
		leave(ctx);
}

void cu_time_record(CUcontext ctx, CUstream stream, CUevent event)
{
	if (cu_is_stream(stream))
		ctx = stream->ctx;
	cu_time_forget(event);
	event->recorded = true;
	event->at = 0;
	if (enter(ctx)) {
		struct fg_queue *queue = ctx->queue;
		/* Where nothing is queued it waits for the context's turn, as all work does. */
		bool first = queue->done == queue->pushed;
		event->item = first ? fg_push(queue, EVENT_NS) : last_of(ctx, stream);
		if (event->item > queue->done)
			put_in(ctx, event);
		else
			event->at = fg_now();
		leave(ctx);
	} else {
		event->at = fg_now();
	}
}

void cu_time_forget(CUevent event)
{
	CUcontext ctx = __atomic_load_n(&event->ctx, __ATOMIC_ACQUIRE);
	if (!enter(ctx))
		return;
	take_out(event);
	leave(ctx);
}

bool cu_time_reached(CUevent event)
{
	CUcontext ctx = __atomic_load_n(&event->ctx, __ATOMIC_ACQUIRE);
	if (enter(ctx))
		leave(ctx);
	return !event->recorded || event->at;
}

void cu_time_wait_event(CUevent event)
{
	CUcontext ctx = __atomic_load_n(&event->ctx, __ATOMIC_ACQUIRE);
	struct fg_card *card = enter(ctx);
	if (card && await(ctx, card, event->item))
		leave(ctx);
}

void cu_time_after(CUcontext ctx, CUstream stream, CUevent event)
{
	if (cu_is_stream(stream))
		ctx = stream->ctx;
	CUcontext other = __atomic_load_n(&event->ctx, __ATOMIC_ACQUIRE);
	if (other && other != ctx)
		cu_time_wait_event(event); /* of another queue: the thread waits in its place */
	else if (cu_is_stream(stream) && enter(ctx)) {
		if (event->ctx == ctx && stream->last < event->item)
			stream->last = event->item;
		leave(ctx);
	}
}
