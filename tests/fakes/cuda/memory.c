/* Linear, pitched, managed and host memory. */
#define _GNU_SOURCE
#include "graph.h"
#include "small.h"

#include <stdlib.h>
#include <sys/mman.h>

#define SMALL_LIMIT MIB
#define PITCH 512

/* With the lock held: finds room for a new allocation on the card. */
static CUresult place(struct cu_alloc *a)
{
	if (a->kind == CU_SMALL)
		return cu_small_alloc(a);
	if (a->kind == CU_LARGE) {
		a->charge = cu_round(a->size, CU_PAGE);
		CUresult rc = cu_charge(a->ctx->device, a->charge);
		if (rc)
			return rc;
	}
	a->mapped = cu_round(a->size, CU_PAGE);
	a->base = (uintptr_t)cu_map(a->mapped);
	if (a->base)
		return CUDA_SUCCESS;
	cu_uncharge(a->ctx->device, a->charge);
	return CUDA_OUT_OF_MEMORY;
}

void cu_give_back(struct cu_alloc *a)
{
	if (a->kind == CU_SMALL || a->kind == CU_SMALL_ARRAY) {
		cu_small_free(a);
	} else if (a->kind == CU_ASYNC) {
		cu_pool_free(a);
	} else if (a->kind == CU_GRAPH) {
		cu_graph_freed(a);
	} else if (a->kind == CU_IMPORT) {
		cu_import_end(a);
	} else {
		cu_unmap((void *)a->base, a->mapped);
		if (a->object)
			fg_object_drop(a->object - 1);
		else
			cu_uncharge(a->ctx->device, a->charge);
	}
}

static CUresult allocate(CUcontext ctx, size_t size, enum cu_kind kind, uintptr_t *out)
{
	/* Sizes that no card has must not overflow when rounded. */
	if (size > (UINT64_C(1) << 62))
		return CUDA_OUT_OF_MEMORY;
	struct cu_alloc *a = calloc(1, sizeof *a);
	if (!a)
		return CUDA_OUT_OF_MEMORY;
	*a = (struct cu_alloc){.size = size, .kind = kind, .ctx = ctx};
	pthread_mutex_lock(&cu_lock);
	CUresult rc = kind == CU_HOST ? CUDA_SUCCESS : cu_unsafe();
	if (!rc)
		rc = place(a);
	if (!rc && !cu_add(a)) {
		cu_give_back(a);
		rc = CUDA_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&cu_lock);
	if (rc)
		free(a);
	else
		*out = a->base;
	return rc;
}

static enum cu_kind kind_for(size_t size)
{
	return size < SMALL_LIMIT ? CU_SMALL : CU_LARGE;
}

static CUresult linear(const char *function, CUdeviceptr *out, size_t size)
{
	CUcontext ctx;
	uintptr_t base;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!out || !size)
		return CUDA_INVALID_VALUE;
	rc = allocate(ctx, size, kind_for(size), &base);
	if (!rc)
		*out = base;
	return rc;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	return linear(__func__, out, size);
}

/* The first version has 32-bit addresses, which device memory of today does not fit. */
API CUresult cuMemAlloc(unsigned *out, unsigned size)
{
	CUcontext ctx;
	(void)out, (void)size;
	CUresult rc = cu_current(__func__, &ctx);
	return rc ? rc : CUDA_OUT_OF_MEMORY;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
				unsigned element)
{
	CUcontext ctx;
	uintptr_t base;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (!out || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_INVALID_VALUE;
	size_t row = cu_round(width, PITCH), size;
	if (row < width || __builtin_mul_overflow(row, height, &size))
		return CUDA_OUT_OF_MEMORY;
	rc = allocate(ctx, size, kind_for(size), &base);
	if (rc)
		return rc;
	*out = base;
	*pitch = row;
	return CUDA_SUCCESS;
}

API CUresult cuMemAllocPitch(unsigned *out, unsigned *pitch, unsigned width, unsigned height,
			     unsigned element)
{
	CUcontext ctx;
	(void)out, (void)pitch, (void)width, (void)height, (void)element;
	CUresult rc = cu_current(__func__, &ctx);
	return rc ? rc : CUDA_OUT_OF_MEMORY;
}

/* Managed memory takes none of the card's until a kernel touches it, and none does here. */
API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
	CUcontext ctx;
	uintptr_t base;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (!out || !size || (flags != 1 && flags != 2))
		return CUDA_INVALID_VALUE;
	rc = allocate(ctx, size, CU_MANAGED, &base);
	if (!rc)
		*out = base;
	return rc;
}

static CUresult host(const char *function, void **out, size_t size)
{
	CUcontext ctx;
	uintptr_t base;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	rc = allocate(ctx, size ? size : 1, CU_HOST, &base);
	if (!rc && !cu_backed(size))
		rc = mprotect((void *)base, size, PROT_READ | PROT_WRITE) ? CUDA_OUT_OF_MEMORY : CUDA_SUCCESS;
	if (!rc)
		*out = (void *)base;
	return rc;
}

API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
	(void)flags;
	return host(__func__, out, size);
}

API CUresult cuMemAllocHost_v2(void **out, size_t size)
{
	return host(__func__, out, size);
}

API CUresult cuMemAllocHost(void **out, unsigned size)
{
	return host(__func__, out, size);
}

static bool has_its_own_end(const struct cu_alloc *a)
{
	return a->kind == CU_ARRAY || a->kind == CU_SMALL_ARRAY || a->kind == CU_IMPORT;
}

/* Frees the allocation that begins at an address, if it is (or is not) host memory. */
static CUresult free_at(uintptr_t address, bool is_host)
{
	CUresult rc = CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	struct cu_alloc *a = cu_find(address);
	if (a && a->base == address && (a->kind == CU_HOST) == is_host && !has_its_own_end(a)) {
		cu_remove(a);
		cu_give_back(a);
		free(a);
		rc = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

/* As the driver: NULL is fine without a context, anything else is looked up. */
static CUresult free_device(const char *function, CUdeviceptr address)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc == CUDA_INVALID_CONTEXT)
		rc = CUDA_SUCCESS;
	if (rc || !address)
		return rc;
	return free_at((uintptr_t)address, false);
}

API CUresult cuMemFree_v2(CUdeviceptr address)
{
	return free_device(__func__, address);
}

API CUresult cuMemFree(unsigned address)
{
	return free_device(__func__, address);
}

API CUresult cuMemFreeHost(void *address)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc || !address)
		return rc;
	return free_at((uintptr_t)address, true);
}

void cu_free_all(struct cu_ctx *ctx)
{
	while (ctx->allocs) {
		struct cu_alloc *a = ctx->allocs;
		cu_remove(a);
		cu_give_back(a);
		free(a);
	}
	cu_settle(ctx);
}

void cu_settle(struct cu_ctx *ctx)
{
	cu_uncharge(ctx->device, ctx->deferred);
	ctx->deferred = 0;
	cu_pools_settle(ctx->device);
}

static CUresult info(const char *function, uint64_t *available, uint64_t *total)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	const struct cu_device *d = cu_device(ctx->device);
	uint64_t used = fg_used(d->gpu.key);
	*total = d->capacity;
	*available = used < d->capacity ? d->capacity - used : 0;
	return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	uint64_t a, t;
	CUresult rc = info(__func__, &a, &t);
	if (!rc && available)
		*available = a;
	if (!rc && total)
		*total = t;
	return rc;
}

API CUresult cuMemGetInfo(unsigned *available, unsigned *total)
{
	uint64_t a, t;
	CUresult rc = info(__func__, &a, &t);
	if (!rc && available)
		*available = a > UINT32_MAX ? UINT32_MAX : (unsigned)a;
	if (!rc && total)
		*total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
	return rc;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	const struct cu_alloc *a = cu_find((uintptr_t)address);
	if (a && base)
		*base = a->base;
	if (a && size)
		*size = a->size;
	pthread_mutex_unlock(&cu_lock);
	return a ? CUDA_SUCCESS : CUDA_NOT_FOUND;
}

API CUresult cuMemGetAddressRange(unsigned *base, unsigned *size, unsigned address)
{
	CUcontext ctx;
	(void)base, (void)size, (void)address;
	CUresult rc = cu_current(__func__, &ctx);
	return rc ? rc : CUDA_NOT_FOUND;
}
