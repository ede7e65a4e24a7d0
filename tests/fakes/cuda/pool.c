/* Memory pools: a pool takes 32 MiB at a time from the card, and at a synchronisation gives
 * back what it does not use beyond its release threshold. */
#define _GNU_SOURCE
#include "graph.h"
#include "pool.h"

#include <stdlib.h>

#define CHUNK (32 * MIB)

enum { POOL_REUSE_FIRST = 1, POOL_REUSE_LAST = 3, POOL_THRESHOLD, POOL_RESERVED,
       POOL_RESERVED_HIGH, POOL_USED, POOL_USED_HIGH };

/* The beginning of CUmemPoolProps; the rest does not matter here. */
struct properties {
	int allocation_type, handle_types, location_type, location_id;
};

static struct cu_pool *pools;

struct cu_pool *cu_new_pool(CUdevice device, bool on_card)
{
	struct cu_pool *pool = calloc(1, sizeof *pool);
	if (!pool)
		return NULL;
	pool->device = device;
	pool->on_card = on_card;
	pool->next = pools;
	pools = pool;
	return pool;
}

struct cu_pool *cu_default_pool(CUdevice device)
{
	struct cu_device *d = cu_device(device);
	if (!d->default_pool) {
		d->pool = d->default_pool = cu_new_pool(device, true);
		if (d->pool)
			d->pool->is_default = true;
	}
	return d->default_pool;
}

bool cu_pool_known(const struct cu_pool *pool)
{
	const struct cu_pool *p = pools;
	while (p && p != pool)
		p = p->next;
	return p && !p->destroyed;
}

void cu_pool_trim(struct cu_pool *pool, uint64_t keep)
{
	uint64_t held = pool->used + pool->waiting;
	if (pool->reserved <= keep)
		return;
	uint64_t least = cu_round(held > keep ? held : keep, CHUNK);
	if (pool->reserved <= least)
		return;
	if (pool->on_card)
		cu_uncharge(pool->device, pool->reserved - least);
	pool->reserved = least;
}

void cu_pools_settle(CUdevice device)
{
	for (struct cu_pool *p = pools; p; p = p->next)
		if (p->device == device) {
			p->waiting = 0;
			cu_pool_trim(p, p->threshold);
		}
}

/* What waits for one stream is of no use to another. */
static CUresult grow(struct cu_pool *pool, uint64_t bytes, CUstream stream)
{
	uint64_t others = stream == pool->waiting_for ? 0 : pool->waiting;
	uint64_t wanted = pool->used + others + bytes;
	CUresult rc = CUDA_SUCCESS;
	while (wanted > pool->reserved && !rc) {
		rc = pool->on_card ? cu_charge(pool->device, CHUNK) : CUDA_SUCCESS;
		pool->reserved += rc ? 0 : CHUNK;
	}
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
	if (rc)
		return rc;
	pool->used = wanted - others;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	/* What is waiting is used again first, by the same stream. */
	uint64_t room = pool->reserved - pool->used;
	pool->waiting = pool->waiting < room ? pool->waiting : room;
	return CUDA_SUCCESS;
}

static uint64_t pool_bytes(size_t size)
{
	return cu_round(size, 512);
}

CUresult cu_pool_take(struct cu_alloc *a, CUstream stream)
{
	CUresult rc = grow(a->pool, pool_bytes(a->size), stream);
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

/* At once (cuMemFree), which synchronises: the pool may give it back. */
void cu_pool_free(struct cu_alloc *a)
{
	struct cu_pool *pool = a->pool;
	cu_pools_settle(pool->device);
	cu_unmap((void *)a->base, a->mapped);
	pool->used -= pool_bytes(a->size);
	pool->forgotten += pool_bytes(a->size);
	pool->allocations--;
	cu_pool_trim(pool, pool->threshold);
}

void cu_pool_free_later(struct cu_alloc *a, CUstream stream)
{
	struct cu_pool *pool = a->pool;
	pool->waiting_for = stream;
	cu_unmap((void *)a->base, a->mapped);
	pool->used -= pool_bytes(a->size);
	pool->waiting += pool_bytes(a->size);
	pool->allocations--;
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const void *properties)
{
	const struct properties *p = properties;
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || !p)
		return CUDA_INVALID_VALUE;
	bool on_card = p->location_type == LOCATION_DEVICE;
	if (on_card && !cu_device(p->location_id))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	rc = cu_unsafe();
	/* Managed memory takes none of the card's until a kernel touches it, and none does here. */
	struct cu_pool *pool =
		rc ? NULL : cu_new_pool(on_card ? p->location_id : 0, on_card && p->allocation_type == 1);
	pthread_mutex_unlock(&cu_lock);
	if (!pool)
		return rc ? rc : CUDA_OUT_OF_MEMORY;
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
	rc = cu_unsafe();
	if (!rc && (!cu_pool_known(pool) || pool->is_default)) {
		rc = CUDA_INVALID_VALUE;
	} else if (!rc) {
		struct cu_device *d = cu_device(pool->device);
		if (d->pool == pool)
			d->pool = d->default_pool;
		pool->waiting = 0;
		cu_pool_trim(pool, 0);
		pool->threshold = 0;
		pool->destroyed = true;
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
	rc = cu_unsafe();
	if (!rc && (!cu_pool_known(pool) || pool->imported))
		rc = CUDA_INVALID_VALUE;
	if (!rc)
		cu_pool_trim(pool, keep);
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
	rc = cu_unsafe();
	if (rc || !cu_pool_known(pool) || pool->imported || !value)
		rc = rc ? rc : CUDA_INVALID_VALUE;
	else if (which >= POOL_REUSE_FIRST && which <= POOL_REUSE_LAST)
		*(int *)value = 1;
	else if (attribute(pool, which))
		*(uint64_t *)value =
			*attribute(pool, which) + (which == POOL_USED ? pool->forgotten : 0);
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
	if (!cu_pool_known(pool) || !value)
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
	struct cu_pool *pool = cu_default_pool(device);
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
	if (cu_pool_known(pool) && pool->device == device) {
		cu_default_pool(device);
		cu_device(device)->pool = pool;
	} else {
		rc = CUDA_INVALID_VALUE;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}
