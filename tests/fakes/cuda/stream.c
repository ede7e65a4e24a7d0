/* Streams: enough for a program to run through. */
#define _GNU_SOURCE
#include "timeline.h"

#include <stdlib.h>
#include <unistd.h>

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
	while (cu_is_stream(stream) && cu_still(stream->wait))
		usleep(1000);
	cu_time_wait(ctx, stream);
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

static CUresult query(const char *function, CUstream stream)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (!rc && stream)
		rc = cu_waiting(stream);
	if (!rc) {
		pthread_mutex_lock(&cu_lock);
		rc = cu_unsafe();
		pthread_mutex_unlock(&cu_lock);
	}
	if (rc)
		return rc;
	bool waits = cu_is_stream(stream) && cu_still(stream->wait);
	return waits || !cu_time_done(ctx, stream) ? CUDA_NOT_READY : CUDA_SUCCESS;
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
	if (cu_is_stream(stream)) {
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
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (!cu_is_stream(stream) || flags)
		return CUDA_INVALID_VALUE;
	stream->wait = (struct cu_wait){(const volatile uint32_t *)(uintptr_t)address, value};
	return CUDA_SUCCESS;
}
