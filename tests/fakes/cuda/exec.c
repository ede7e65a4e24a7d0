/* Streams, events and launches: enough for a program to run through. A launch does nothing but
 * count, and take what its kernel needs. */
#define _GNU_SOURCE
#include "code.h"
#include "graph.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct cu_event {
	struct cu_wait wait; /* of the stream, when it was recorded */
	struct timespec at;
};

/* With the lock held. A stream's memory stays with its context when it goes, for the next one. */
static CUresult take_for_stream(CUcontext ctx)
{
	const struct fg_conf *conf = fg_conf_get();
	uint64_t price = conf ? conf->gpu[cu_device(ctx->device)->gpu.key].stream : 0;
	if (ctx->streams < ctx->streams_paid) {
		ctx->streams++;
		return CUDA_SUCCESS;
	}
	CUresult rc = cu_charge(ctx->device, price);
	if (rc)
		return rc;
	ctx->extra += price;
	ctx->streams++;
	ctx->streams_paid++;
	return CUDA_SUCCESS;
}

CUresult cu_new_stream(CUcontext ctx, CUstream *out, unsigned flags, int priority)
{
	if (!out || flags > 1)
		return CUDA_INVALID_VALUE;
	CUstream stream = malloc(sizeof *stream);
	if (!stream)
		return CUDA_OUT_OF_MEMORY;
	*stream = (struct cu_stream){.flags = flags, .priority = priority, .ctx = ctx};
	pthread_mutex_lock(&cu_lock);
	CUresult rc = take_for_stream(ctx);
	pthread_mutex_unlock(&cu_lock);
	if (rc)
		free(stream);
	else
		*out = stream;
	return rc;
}

static CUresult create_stream(const char *function, CUstream *out, unsigned flags, int priority)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	return rc ? rc : cu_new_stream(ctx, out, flags, priority);
}

API CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
	return create_stream(__func__, out, flags, 0);
}

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
	return create_stream(__func__, out, flags, priority);
}

static CUresult destroy_stream(const char *function, CUstream stream)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc || !stream)
		return rc;
	pthread_mutex_lock(&cu_lock);
	if (stream->ctx->streams)
		stream->ctx->streams--;
	pthread_mutex_unlock(&cu_lock);
	free(stream);
	return rc;
}

API CUresult cuStreamDestroy(CUstream stream)
{
	return destroy_stream(__func__, stream);
}

API CUresult cuStreamDestroy_v2(CUstream stream)
{
	return destroy_stream(__func__, stream);
}

static CUresult settle(const char *function, CUstream stream)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (!rc && stream)
		rc = cu_waiting(stream);
	if (rc)
		return rc;
	while (stream > (CUstream)2 && cu_still(stream->wait))
		usleep(1000);
	pthread_mutex_lock(&cu_lock);
	cu_settle(ctx);
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

API CUresult cuStreamSynchronize(CUstream stream)
{
	return settle(__func__, stream);
}

API CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	return settle(__func__, stream);
}

static CUresult current_only(const char *function)
{
	CUcontext ctx;
	return cu_current(function, &ctx);
}

static CUresult query(const char *function, CUstream stream)
{
	CUresult rc = current_only(function);
	if (rc || !stream)
		return rc;
	rc = cu_waiting(stream);
	return !rc && stream > (CUstream)2 && cu_still(stream->wait) ? CUDA_NOT_READY : rc;
}

API CUresult cuStreamQuery(CUstream stream)
{
	return query(__func__, stream);
}

API CUresult cuStreamQuery_ptsz(CUstream stream)
{
	return query(__func__, stream);
}

/* Default streams are the current context's. */
static CUresult context_of(const char *function, CUstream stream, CUcontext *ctx)
{
	CUresult rc = cu_current(function, ctx);
	if ((uintptr_t)stream > 2) {
		*ctx = stream->ctx;
		rc = cu_enter(function);
	}
	return rc;
}

API CUresult cuStreamGetCtx(CUstream stream, CUcontext *out)
{
	return out ? context_of(__func__, stream, out) : CUDA_INVALID_VALUE;
}

API CUresult cuStreamGetDevice(CUstream stream, CUdevice *out)
{
	CUcontext ctx;
	CUresult rc = context_of(__func__, stream, &ctx);
	if (!rc && out)
		*out = ctx->device;
	return rc || out ? rc : CUDA_INVALID_VALUE;
}

bool cu_still(struct cu_wait wait)
{
	return wait.at && *wait.at < wait.value;
}

/* For values on the host only. */
API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value,
				    unsigned flags)
{
	CUresult rc = current_only(__func__);
	if (rc)
		return rc;
	if (stream <= (CUstream)2 || flags)
		return CUDA_INVALID_VALUE;
	stream->wait = (struct cu_wait){(const volatile uint32_t *)(uintptr_t)address, value};
	return CUDA_SUCCESS;
}

API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	(void)flags;
	CUresult rc = current_only(__func__);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	CUevent event = calloc(1, sizeof *event);
	if (!event)
		return CUDA_OUT_OF_MEMORY;
	*out = event;
	return CUDA_SUCCESS;
}

static CUresult destroy_event(const char *function, CUevent event)
{
	CUresult rc = current_only(function);
	if (!rc)
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
	CUresult rc = current_only(function);
	if (rc)
		return rc;
	if (!event)
		return CUDA_INVALID_HANDLE;
	event->wait = stream > (CUstream)2 ? stream->wait : (struct cu_wait){0};
	clock_gettime(CLOCK_MONOTONIC, &event->at);
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

API CUresult cuEventQuery(CUevent event)
{
	CUresult rc = current_only(__func__);
	if (!rc && !event)
		return CUDA_INVALID_HANDLE;
	return !rc && cu_still(event->wait) ? CUDA_NOT_READY : rc;
}

API CUresult cuEventSynchronize(CUevent event)
{
	CUresult rc = current_only(__func__);
	if (!rc && !event)
		rc = CUDA_INVALID_HANDLE;
	while (!rc && cu_still(event->wait))
		usleep(1000);
	return rc ? rc : settle(__func__, NULL);
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
	CUresult rc = current_only(__func__);
	if (rc)
		return rc;
	if (!milliseconds || !from || !to)
		return CUDA_INVALID_VALUE;
	*milliseconds = (float)((double)(to->at.tv_sec - from->at.tv_sec) * 1e3 +
				(double)(to->at.tv_nsec - from->at.tv_nsec) * 1e-6);
	return CUDA_SUCCESS;
}

static CUresult launch(const char *function, CUfunction kernel, unsigned blocks, unsigned threads,
		       CUstream stream)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!kernel)
		return CUDA_INVALID_HANDLE;
	if (!blocks || !threads || threads > 1024)
		return CUDA_INVALID_VALUE;
	if (cu_capture_work(stream, CU_NODE_KERNEL, NULL, &rc))
		return rc;
	rc = cu_code_used(ctx, kernel);
	if (!rc)
		fg_count_launch(cu_device(ctx->device)->gpu.key);
	return rc;
}

#define LAUNCH(name)                                                                             \
	API CUresult name(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, \
			  unsigned by, unsigned bz, unsigned shared, CUstream stream,            \
			  void **parameters, void **extra)                                       \
	{                                                                                        \
		(void)shared, (void)parameters, (void)extra;                                     \
		return launch(__func__, kernel, gx *gy *gz, bx *by *bz, stream);                 \
	}

LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)
