/* Memory pools: a pool takes 32 MiB at a time from the card, and at a synchronisation gives
 * back what it does not use beyond its release threshold. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>

#define CHUNK (32 * MIB)

enum { POOL_REUSE_FIRST = 1, POOL_REUSE_LAST = 3, POOL_THRESHOLD, POOL_RESERVED,
       POOL_RESERVED_HIGH, POOL_USED, POOL_USED_HIGH };

struct cu_pool {
	CUdevice device;
	bool is_default;
	uint64_t used, reserved, used_high, reserved_high, threshold;
	uint64_t allocations;
	struct cu_pool *next;
};

/* The beginning of CUmemPoolProps; the rest does not matter here. */
struct properties {
	int allocation_type, handle_types, location_type, location_id;
};

static struct cu_pool *pools;

static struct cu_pool *new_pool(CUdevice device, bool is_default)
{
	struct cu_pool *pool = calloc(1, sizeof *pool);
	if (!pool)
		return NULL;
	pool->device = device;
	pool->is_default = is_default;
	pool->next = pools;
	pools = pool;
	return pool;
}

static struct cu_pool *default_pool(CUdevice device)
{
	struct cu_device *d = cu_device(device);
	if (!d->default_pool)
		d->pool = d->default_pool = new_pool(device, true);
	return d->default_pool;
}

static bool known(const struct cu_pool *pool)
{
	const struct cu_pool *p = pools;
	while (p && p != pool)
		p = p->next;
	return p != NULL;
}

/* Gives back whole chunks that are neither used nor kept. */
static void trim(struct cu_pool *pool, uint64_t keep)
{
	uint64_t least = cu_round(pool->used > keep ? pool->used : keep, CHUNK);
	if (pool->reserved <= least)
		return;
	cu_uncharge(pool->device, pool->reserved - least);
	pool->reserved = least;
}

void cu_pools_settle(CUdevice device)
{
	for (struct cu_pool *p = pools; p; p = p->next)
		if (p->device == device)
			trim(p, p->threshold);
}

static CUresult grow(struct cu_pool *pool, uint64_t bytes)
{
	uint64_t wanted = pool->used + bytes;
	if (wanted > pool->reserved) {
		uint64_t more = cu_round(wanted - pool->reserved, CHUNK);
		CUresult rc = cu_charge(pool->device, more);
		if (rc)
			return rc;
		pool->reserved += more;
	}
	pool->used = wanted;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
	return CUDA_SUCCESS;
}

static uint64_t pool_bytes(size_t size)
{
	return cu_round(size, 512);
}

/* With the lock held. */
static CUresult take(struct cu_alloc *a)
{
	CUresult rc = grow(a->pool, pool_bytes(a->size));
	if (rc)
		return rc;
	a->mapped = cu_round(a->size, CU_PAGE);
	a->base = (uintptr_t)cu_map(a->mapped);
	if (a->base && cu_add(a)) {
		a->pool->allocations++;
		return CUDA_SUCCESS;
	}
	if (a->base)
		cu_unmap((void *)a->base, a->mapped);
	a->pool->used -= pool_bytes(a->size);
	return CUDA_OUT_OF_MEMORY;
}

void cu_pool_free(struct cu_alloc *a)
{
	cu_unmap((void *)a->base, a->mapped);
	a->pool->used -= pool_bytes(a->size);
	a->pool->allocations--;
}

static CUresult allocate(const char *function, CUdeviceptr *out, size_t size, CUmemoryPool pool)
{
	CUcontext ctx;
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
	struct cu_alloc *a = calloc(1, sizeof *a);
	if (!a)
		return CUDA_OUT_OF_MEMORY;
	pthread_mutex_lock(&cu_lock);
	default_pool(ctx->device);
	*a = (struct cu_alloc){.size = size, .kind = CU_ASYNC, .ctx = ctx,
			       .pool = pool ? pool : cu_device(ctx->device)->pool};
	rc = known(a->pool) ? take(a) : CUDA_INVALID_VALUE;
	if (!rc)
		*out = a->base;
	else
		free(a);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
	(void)stream;
	return allocate(__func__, out, size, NULL);
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream)
{
	(void)stream;
	return allocate(__func__, out, size, NULL);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool,
				     CUstream stream)
{
	(void)stream;
	return pool ? allocate(__func__, out, size, pool) : CUDA_INVALID_VALUE;
}

API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool,
					  CUstream stream)
{
	(void)stream;
	return pool ? allocate(__func__, out, size, pool) : CUDA_INVALID_VALUE;
}

/* With the lock held: the bytes stay with the pool, or with the context when the memory was
 * not a pool's, until a synchronisation. */
static CUresult drop(uintptr_t address)
{
	struct cu_alloc *a = cu_find(address);
	if (!a || a->base != address || (a->kind != CU_ASYNC && a->kind != CU_LARGE))
		return CUDA_INVALID_VALUE;
	cu_remove(a);
	if (a->kind == CU_ASYNC) {
		cu_pool_free(a);
	} else {
		cu_unmap((void *)a->base, a->mapped);
		a->ctx->deferred += a->charge;
	}
	free(a);
	return CUDA_SUCCESS;
}

static CUresult free_async(const char *function, CUdeviceptr address)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc || !address)
		return rc;
	pthread_mutex_lock(&cu_lock);
	rc = drop((uintptr_t)address);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	(void)stream;
	return free_async(__func__, address);
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	(void)stream;
	return free_async(__func__, address);
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const void *properties)
{
	const struct properties *p = properties;
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || !p)
		return CUDA_INVALID_VALUE;
	if (!cu_device(p->location_id))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	struct cu_pool *pool = new_pool(p->location_id, false);
	pthread_mutex_unlock(&cu_lock);
	if (!pool)
		return CUDA_OUT_OF_MEMORY;
	*out = pool;
	return CUDA_SUCCESS;
}

/* A pool with live allocations goes on to hold them; nobody can allocate from it again. */
API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	if (!known(pool) || pool->is_default) {
		rc = CUDA_INVALID_VALUE;
	} else {
		struct cu_device *d = cu_device(pool->device);
		if (d->pool == pool)
			d->pool = d->default_pool;
		trim(pool, 0);
		pool->threshold = 0;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	if (known(pool))
		trim(pool, keep);
	else
		rc = CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

static uint64_t *attribute(struct cu_pool *pool, int which)
{
	switch (which) {
	case POOL_THRESHOLD:
		return &pool->threshold;
	case POOL_RESERVED:
		return &pool->reserved;
	case POOL_RESERVED_HIGH:
		return &pool->reserved_high;
	case POOL_USED:
		return &pool->used;
	case POOL_USED_HIGH:
		return &pool->used_high;
	default:
		return NULL;
	}
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int which, void *value)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	if (!known(pool) || !value)
		rc = CUDA_INVALID_VALUE;
	else if (which >= POOL_REUSE_FIRST && which <= POOL_REUSE_LAST)
		*(int *)value = 1;
	else if (attribute(pool, which))
		*(uint64_t *)value = *attribute(pool, which);
	else
		rc = CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

/* The high-water marks may only be set back to 0, which means to the present. */
API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int which, void *value)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	if (!known(pool) || !value)
		rc = CUDA_INVALID_VALUE;
	else if (which == POOL_THRESHOLD)
		pool->threshold = *(uint64_t *)value;
	else if ((which == POOL_RESERVED_HIGH || which == POOL_USED_HIGH) && !*(uint64_t *)value)
		*attribute(pool, which) = *attribute(pool, which - 1);
	else if (which < POOL_REUSE_FIRST || which > POOL_REUSE_LAST)
		rc = CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

static CUresult get_pool(const char *function, CUmemoryPool *out, CUdevice device, bool current)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	if (!cu_device(device))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	struct cu_pool *pool = default_pool(device);
	if (current)
		pool = cu_device(device)->pool;
	pthread_mutex_unlock(&cu_lock);
	if (!pool)
		return CUDA_OUT_OF_MEMORY;
	*out = pool;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
	return get_pool(__func__, out, device, false);
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
	return get_pool(__func__, out, device, true);
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!cu_device(device))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	if (known(pool) && pool->device == device) {
		default_pool(device);
		cu_device(device)->pool = pool;
	} else {
		rc = CUDA_INVALID_VALUE;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}
