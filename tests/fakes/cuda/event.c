/* Events: their times are those at which the work before them was done. */
#define _GNU_SOURCE
#include "timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DISABLE_TIMING = 2 };

static CUresult current_only(const char *function)
{
	CUcontext ctx;
	return cu_current(function, &ctx);
}

/* An event ends with its context. The driver may not notice who uses it then, here it is seen. */
static void must_live(CUevent event)
{
	if (event && event->maker->ends != event->ends) {
		fputs("an event of a context that has ended\n", stderr);
		abort();
	}
}

API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	CUevent event = calloc(1, sizeof *event);
	if (!event)
		return CUDA_OUT_OF_MEMORY;
	event->flags = flags;
	event->maker = ctx;
	event->ends = ctx->ends;
	*out = event;
	return CUDA_SUCCESS;
}

static CUresult destroy_event(const char *function, CUevent event)
{
	CUresult rc = current_only(function);
	if (rc || !event)
		return rc;
	must_live(event);
	cu_time_forget(event);
	free(event);
	return rc;
}

API CUresult cuEventDestroy(CUevent event)
{
	return destroy_event(__func__, event);
}

API CUresult cuEventDestroy_v2(CUevent event)
{
	return destroy_event(__func__, event);
}

static CUresult record(const char *function, CUevent event, CUstream stream)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!event)
		return CUDA_INVALID_HANDLE;
	must_live(event);
	event->captured = cu_capture_of(stream);
	if (event->captured)
		return CUDA_SUCCESS;
	event->wait = cu_is_stream(stream) ? stream->wait : (struct cu_wait){0};
	cu_time_record(ctx, stream, event);
	return CUDA_SUCCESS;
}

API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return record(__func__, event, stream);
}

API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	return record(__func__, event, stream);
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
	return flags > 1 ? CUDA_INVALID_VALUE : record(__func__, event, stream);
}

API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags)
{
	return flags > 1 ? CUDA_INVALID_VALUE : record(__func__, event, stream);
}

/* Usable. What is captured into a graph has no state of its own, and while something is captured
 * that forbids it no event may be asked; both spoil the capture. */
static CUresult ask(const char *function, CUevent event)
{
	CUresult rc = current_only(function);
	if (rc)
		return rc;
	if (!event)
		return CUDA_INVALID_HANDLE;
	must_live(event);
	pthread_mutex_lock(&cu_lock);
	if (event->captured) {
		cu_capture_spoil(event->captured);
		rc = CUDA_CAPTURED_EVENT;
	} else {
		rc = cu_unsafe();
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuEventQuery(CUevent event)
{
	CUresult rc = ask(__func__, event);
	if (rc)
		return rc;
	return cu_still(event->wait) || !cu_time_reached(event) ? CUDA_NOT_READY : CUDA_SUCCESS;
}

API CUresult cuEventSynchronize(CUevent event)
{
	CUcontext ctx;
	CUresult rc = ask(__func__, event);
	if (rc)
		return rc;
	while (cu_still(event->wait))
		usleep(1000);
	cu_time_wait_event(event);
	rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	cu_settle(ctx);
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

static CUresult elapsed(const char *function, float *milliseconds, CUevent from, CUevent to)
{
	CUresult rc = current_only(function);
	if (rc)
		return rc;
	if (!milliseconds)
		return CUDA_INVALID_VALUE;
	must_live(from);
	must_live(to);
	if (!from || !to || !from->recorded || !to->recorded || (from->flags | to->flags) & DISABLE_TIMING)
		return CUDA_INVALID_HANDLE;
	if (!cu_time_reached(from) || !cu_time_reached(to))
		return CUDA_NOT_READY;
	*milliseconds = (float)(((double)to->at - (double)from->at) * 1e-6);
	return CUDA_SUCCESS;
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
	return elapsed(__func__, milliseconds, from, to);
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to)
{
	return elapsed(__func__, milliseconds, from, to);
}

static CUresult wait(const char *function, CUstream stream, CUevent event, unsigned flags)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!event)
		return CUDA_INVALID_HANDLE;
	if (flags > 1)
		return CUDA_INVALID_VALUE;
	if (event->captured)
		cu_capture_join(stream, event->captured);
	else
		cu_time_after(ctx, stream, event);
	return CUDA_SUCCESS;
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	return wait(__func__, stream, event, flags);
}

API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
	return wait(__func__, stream, event, flags);
}
