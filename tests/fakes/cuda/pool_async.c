/* Allocation and release in stream order. */
#define _GNU_SOURCE
#include "graph.h"
#include "pool.h"
#include "small.h"

#include <stdlib.h>

/* With the lock held. */
static CUresult allocate_now(CUdevice device, CUdeviceptr *out, size_t size, CUmemoryPool pool,
			     CUstream stream)
{
	struct cu_alloc *a = calloc(1, sizeof *a);
	if (!a)
		return CUDA_OUT_OF_MEMORY;
	cu_default_pool(device);
	/* A pool's memory outlives contexts. */
	*a = (struct cu_alloc){.size = size, .kind = CU_ASYNC,
			       .pool = pool ? pool : cu_device(device)->pool};
	CUresult rc = cu_unsafe();
	if (!rc && (!cu_pool_known(a->pool) || a->pool->imported))
		rc = CUDA_INVALID_VALUE;
	if (!rc)
		rc = cu_pool_take(a, stream);
	*out = rc == CUDA_OUT_OF_MEMORY ? 0 : *out;
	if (!rc)
		*out = a->base;
	else
		free(a);
	return rc;
}

static CUresult allocate(const char *function, CUdeviceptr *out, size_t size, CUmemoryPool pool,
			 CUstream stream)
{
	CUcontext ctx;
	struct cu_node *node;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	if (!size) {
		*out = 0;
		return CUDA_SUCCESS;
	}
	if (size > (UINT64_C(1) << 62))
		return CUDA_OUT_OF_MEMORY;
	CUdevice device = (uintptr_t)stream > 2 ? stream->ctx->device : ctx->device;
	pthread_mutex_lock(&cu_lock);
	CUgraph graph = cu_captured(stream, &rc);
	if (graph && !rc) {
		rc = cu_graph_alloc(graph, device, size, &node);
		if (!rc)
			*out = node->address;
	} else if (!rc) {
		rc = allocate_now(device, out, size, pool, stream);
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
	return allocate(__func__, out, size, NULL, stream);
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream)
{
	return allocate(__func__, out, size, NULL, stream);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool,
				     CUstream stream)
{
	return pool ? allocate(__func__, out, size, pool, stream) : CUDA_INVALID_VALUE;
}

API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool,
					  CUstream stream)
{
	return pool ? allocate(__func__, out, size, pool, stream) : CUDA_INVALID_VALUE;
}

/* With the lock held: the bytes stay with the pool, or with the context when the memory was
 * not a pool's, until a synchronisation. */
static CUresult drop(uintptr_t address, CUstream stream)
{
	struct cu_alloc *a = cu_find(address);
	if (a && a->base == address && a->kind == CU_MANAGED)
		return CUDA_NOT_SUPPORTED;
	if (!a || a->base != address ||
	    (a->kind != CU_ASYNC && a->kind != CU_GRAPH && a->kind != CU_SMALL && a->kind != CU_LARGE))
		return CUDA_INVALID_VALUE;
	cu_remove(a);
	if (a->kind == CU_ASYNC) {
		cu_pool_free_later(a, stream);
	} else if (a->kind == CU_GRAPH) {
		cu_graph_freed(a);
	} else if (a->kind == CU_SMALL) {
		cu_small_free(a);
	} else {
		cu_unmap((void *)a->base, a->mapped);
		a->ctx->deferred += a->charge;
	}
	free(a);
	return CUDA_SUCCESS;
}

static CUresult free_async(const char *function, CUdeviceptr address, CUstream stream)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc || !address)
		return rc;
	pthread_mutex_lock(&cu_lock);
	CUgraph graph = cu_captured(stream, &rc);
	if (graph && !rc)
		rc = cu_graph_free(graph, (uintptr_t)address);
	else if (!rc)
		rc = cu_unsafe();
	if (!rc && !graph)
		rc = drop((uintptr_t)address, stream);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	return free_async(__func__, address, stream);
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	return free_async(__func__, address, stream);
}
