/* cuCtxSetLimit: what costs device memory, and when. */
#include "cuda.h"

enum { STACK, PRINTF, HEAP, LAST_LIMIT = 6, STACK_MOST = 512 << 10, THREADS = 1024 };

API CUresult cuCtxGetLimit(size_t *value, int limit)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (!value || limit < 0 || limit > LAST_LIMIT)
		return CUDA_INVALID_VALUE;
	*value = limit == STACK ? ctx->stack : limit == HEAP ? ctx->heap : 0;
	return CUDA_SUCCESS;
}

/* At once: for each thread that the card can run at a time. */
static CUresult set_stack(CUcontext ctx, size_t value)
{
	uint64_t all = (uint64_t)cu_device(ctx->device)->gpu.multiprocessors * THREADS;
	if (value > STACK_MOST)
		return CUDA_INVALID_VALUE;
	if (value > ctx->stack) {
		CUresult rc = cu_charge(ctx->device, (value - ctx->stack) * all);
		if (rc)
			return rc;
		ctx->extra += (value - ctx->stack) * all;
	} else {
		cu_uncharge(ctx->device, (ctx->stack - value) * all);
		ctx->extra -= (ctx->stack - value) * all;
	}
	ctx->stack = value;
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(int limit, size_t value)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (limit < 0 || limit > LAST_LIMIT)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	if (limit == STACK)
		rc = set_stack(ctx, value);
	else if (limit == HEAP && ctx->heap_taken)
		rc = CUDA_INVALID_VALUE;
	else if (limit == HEAP)
		ctx->heap = value;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}
