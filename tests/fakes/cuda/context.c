/* Contexts and each thread's stack of them. A context costs the card memory. Structures are kept
 * after destruction, so that a stale handle gives an error and not a crash. */
#define _GNU_SOURCE
#include "context.h"
#include "code.h"
#include "timeline.h"

#include <stdlib.h>

enum { STACK = 64 };

pthread_mutex_t cu_lock = PTHREAD_MUTEX_INITIALIZER;

static __thread CUcontext stack[STACK];
static __thread unsigned depth;
static CUcontext all;
static unsigned long long last_id;

static bool known(CUcontext ctx)
{
	bool found = false;
	pthread_mutex_lock(&cu_lock);
	for (CUcontext c = all; c && !found; c = c->next)
		found = c == ctx;
	pthread_mutex_unlock(&cu_lock);
	return found;
}

CUresult cu_current(const char *function, CUcontext *ctx)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!depth || !stack[depth - 1])
		return CUDA_INVALID_CONTEXT;
	*ctx = stack[depth - 1];
	if ((*ctx)->active && (*ctx)->parent)
		*ctx = (*ctx)->parent;
	if (!(*ctx)->active)
		return CUDA_CONTEXT_IS_DESTROYED;
	const struct fg_conf *conf = fg_conf_get();
	return conf ? fg_fault(&conf->gpu[cu_device((*ctx)->device)->gpu.key].faults, function) : 0;
}

CUresult cu_activate(CUcontext ctx)
{
	const struct fg_gpu *gpu = &cu_device(ctx->device)->gpu;
	CUresult rc = cu_charge(ctx->device, gpu->context);
	if (rc)
		return rc;
	rc = cu_time_begin(ctx);
	if (rc) {
		cu_uncharge(ctx->device, gpu->context);
		return rc;
	}
	ctx->active = true;
	ctx->id = ++last_id;
	ctx->uses = 1;
	ctx->stack = CU_STACK;
	ctx->heap = CU_HEAP;
	ctx->heap_taken = false;
	ctx->streams = ctx->streams_paid = 0;
	fg_count_context(gpu->key, 1);
	return CUDA_SUCCESS;
}

void cu_deactivate(CUcontext ctx)
{
	const struct fg_gpu *gpu = &cu_device(ctx->device)->gpu;
	if (!ctx->active)
		return;
	cu_time_end(ctx);
	cu_free_all(ctx);
	cu_code_gone(ctx);
	cu_uncharge(ctx->device, gpu->context + ctx->extra);
	ctx->extra = 0;
	fg_count_context(gpu->key, -1);
	ctx->active = false;
	ctx->ends++;
}

CUcontext cu_new_context(CUdevice device, bool primary)
{
	CUcontext ctx = calloc(1, sizeof *ctx);
	if (!ctx)
		return NULL;
	ctx->device = device;
	ctx->primary = primary;
	ctx->version = 3020;
	ctx->next = all;
	all = ctx;
	return ctx;
}

static CUresult push(CUcontext ctx)
{
	if (depth == STACK)
		return CUDA_INVALID_VALUE;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

static CUresult create(const char *function, CUcontext *out, unsigned flags, CUdevice device,
		       unsigned version)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!out || flags > 0xff)
		return CUDA_INVALID_VALUE;
	if (!cu_device(device))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	CUcontext ctx = cu_new_context(device, false);
	rc = ctx ? cu_activate(ctx) : CUDA_OUT_OF_MEMORY;
	pthread_mutex_unlock(&cu_lock);
	if (rc)
		return rc;
	ctx->flags = flags;
	ctx->version = version;
	rc = push(ctx);
	if (!rc)
		*out = ctx;
	return rc;
}

API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
	return create(__func__, out, flags, device, 3010);
}

API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
	return create(__func__, out, flags, device, 3020);
}

API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int n, unsigned flags, CUdevice device)
{
	(void)affinity, (void)n;
	return create(__func__, out, flags, device, 3020);
}

API CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice device)
{
	(void)parameters;
	return create(__func__, out, flags, device, 3020);
}

API CUresult cuGLCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
	return create(__func__, out, flags, device, 3010);
}

API CUresult cuGLCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
	return create(__func__, out, flags, device, 3020);
}

API CUresult cuVDPAUCtxCreate(CUcontext *out, unsigned flags, CUdevice device, unsigned display,
			      void *ask)
{
	(void)display, (void)ask;
	return create(__func__, out, flags, device, 3010);
}

API CUresult cuVDPAUCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device, unsigned display,
				 void *ask)
{
	(void)display, (void)ask;
	return create(__func__, out, flags, device, 3020);
}

static CUresult destroy(const char *function, CUcontext ctx)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!ctx)
		return CUDA_INVALID_VALUE;
	if (!known(ctx) || ctx->primary || ctx->parent)
		return CUDA_INVALID_CONTEXT;
	if (!ctx->active)
		return CUDA_CONTEXT_IS_DESTROYED;
	pthread_mutex_lock(&cu_lock);
	cu_deactivate(ctx);
	pthread_mutex_unlock(&cu_lock);
	if (depth && stack[depth - 1] == ctx)
		depth--;
	return CUDA_SUCCESS;
}

/* Uses are counted; the last one to go takes the context with it. */
API CUresult cuCtxAttach(CUcontext *out, unsigned flags)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (!out || flags)
		return CUDA_INVALID_VALUE;
	ctx->uses++;
	*out = ctx;
	return CUDA_SUCCESS;
}

API CUresult cuCtxDetach(CUcontext ctx)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!ctx || !known(ctx))
		return CUDA_INVALID_CONTEXT;
	if (ctx->active && ctx->uses > 1) {
		ctx->uses--;
		return CUDA_SUCCESS;
	}
	return destroy(__func__, ctx);
}

API CUresult cuCtxDestroy(CUcontext ctx)
{
	return destroy(__func__, ctx);
}

API CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	return destroy(__func__, ctx);
}

static CUresult push_current(const char *function, CUcontext ctx)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!ctx)
		return CUDA_INVALID_VALUE;
	return known(ctx) ? push(ctx) : CUDA_INVALID_CONTEXT;
}

API CUresult cuCtxPushCurrent(CUcontext ctx)
{
	return push_current(__func__, ctx);
}

API CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	return push_current(__func__, ctx);
}

static CUresult pop_current(const char *function, CUcontext *out)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!depth)
		return CUDA_INVALID_CONTEXT;
	depth--;
	if (out)
		*out = stack[depth];
	return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent(CUcontext *out)
{
	return pop_current(__func__, out);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	return pop_current(__func__, out);
}

/* Replaces the top of the stack; NULL takes it away. */
API CUresult cuCtxSetCurrent(CUcontext ctx)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (ctx && !known(ctx))
		return CUDA_INVALID_CONTEXT;
	if (depth)
		depth--;
	return ctx ? push(ctx) : CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *out)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	*out = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

/* The context given, or the current one. */
static CUresult given_or_current(const char *function, CUcontext given, CUcontext *ctx)
{
	if (!given)
		return cu_current(function, ctx);
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	*ctx = given;
	if (!known(given))
		return CUDA_INVALID_CONTEXT;
	return given->active ? CUDA_SUCCESS : CUDA_CONTEXT_IS_DESTROYED;
}

static CUresult get_device(const char *function, CUdevice *device, CUcontext given)
{
	CUcontext ctx;
	CUresult rc = cu_enter(function);
	if (!rc && !device)
		rc = CUDA_INVALID_VALUE;
	if (!rc)
		rc = given_or_current(function, given, &ctx);
	if (!rc)
		*device = ctx->device;
	return rc;
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
	return get_device(__func__, device, NULL);
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
	return get_device(__func__, device, ctx);
}

static CUresult synchronize(const char *function, CUcontext given)
{
	CUcontext ctx;
	CUresult rc = given_or_current(function, given, &ctx);
	if (rc)
		return rc;
	rc = cu_waiting(NULL);
	if (rc)
		return rc;
	cu_time_wait(ctx, NULL);
	pthread_mutex_lock(&cu_lock);
	cu_settle(ctx);
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void)
{
	return synchronize(__func__, NULL);
}

API CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	return synchronize(__func__, ctx);
}

API CUresult cuCtxGetApiVersion(CUcontext given, unsigned *version)
{
	CUcontext ctx;
	CUresult rc = given_or_current(__func__, given, &ctx);
	if (rc)
		return rc;
	if (!version)
		return CUDA_INVALID_VALUE;
	*version = ctx->version;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext given, unsigned long long *id)
{
	CUcontext ctx;
	CUresult rc = given_or_current(__func__, given, &ctx);
	if (rc)
		return rc;
	if (!id)
		return CUDA_INVALID_VALUE;
	*id = ctx->id;
	return CUDA_SUCCESS;
}
