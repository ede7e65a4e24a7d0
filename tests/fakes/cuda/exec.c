/* Streams, events, modules and launches: enough for a program to run through. A launch does
 * nothing but count. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <time.h>

struct cu_event {
	struct timespec at;
};

struct cu_function {
	const char *name;
};

struct cu_module {
	struct cu_function function;
};

static CUresult create_stream(const char *function, CUstream *out, unsigned flags, int priority)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!out || flags > 1)
		return CUDA_INVALID_VALUE;
	CUstream stream = malloc(sizeof *stream);
	if (!stream)
		return CUDA_OUT_OF_MEMORY;
	*stream = (struct cu_stream){.flags = flags, .priority = priority, .ctx = ctx};
	*out = stream;
	return CUDA_SUCCESS;
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
	if (!rc)
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
	return rc || !stream ? rc : cu_waiting(stream);
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

static CUresult record(const char *function, CUevent event)
{
	CUresult rc = current_only(function);
	if (rc)
		return rc;
	if (!event)
		return CUDA_INVALID_HANDLE;
	clock_gettime(CLOCK_MONOTONIC, &event->at);
	return CUDA_SUCCESS;
}

API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	(void)stream;
	return record(__func__, event);
}

API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	(void)stream;
	return record(__func__, event);
}

API CUresult cuEventQuery(CUevent event)
{
	CUresult rc = current_only(__func__);
	return !rc && !event ? CUDA_INVALID_HANDLE : rc;
}

API CUresult cuEventSynchronize(CUevent event)
{
	CUresult rc = current_only(__func__);
	if (!rc && !event)
		rc = CUDA_INVALID_HANDLE;
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

static CUresult load(const char *function, CUmodule *out, const void *image)
{
	CUresult rc = current_only(function);
	if (rc)
		return rc;
	if (!out || !image)
		return CUDA_INVALID_VALUE;
	CUmodule module = calloc(1, sizeof *module);
	if (!module)
		return CUDA_OUT_OF_MEMORY;
	*out = module;
	return CUDA_SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return load(__func__, out, image);
}

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, void *options,
				void **values)
{
	(void)count, (void)options, (void)values;
	return load(__func__, out, image);
}

API CUresult cuModuleUnload(CUmodule module)
{
	CUresult rc = current_only(__func__);
	if (!rc)
		free(module);
	return rc;
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	CUresult rc = current_only(__func__);
	if (rc)
		return rc;
	if (!out || !name)
		return CUDA_INVALID_VALUE;
	if (!module)
		return CUDA_INVALID_HANDLE;
	*out = &module->function;
	return CUDA_SUCCESS;
}

static CUresult launch(const char *function, const void *kernel, unsigned blocks, unsigned threads,
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
	if (!cu_capture_work(stream, CU_NODE_KERNEL, NULL, &rc))
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
