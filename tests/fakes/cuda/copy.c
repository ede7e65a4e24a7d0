/* Copies and fills. Ranges are checked as the driver checks them; bytes move where the memory
 * is backed, and are left out where it has addresses only. */
#define _GNU_SOURCE
#include "timeline.h"

#include <string.h>

struct range {
	uintptr_t address;
	bool backed;
};

/* With the lock held: device memory of one allocation or of adjoining mappings. */
static bool resolve(struct range *r, size_t bytes)
{
	const struct cu_alloc *a = cu_find(r->address);
	if (a) {
		r->backed = a->kind == CU_SMALL || a->kind == CU_HOST || cu_backed(a->mapped);
		return bytes <= a->size - (r->address - a->base);
	}
	/* A reservation is backed or not as a whole, which its mappings do not tell. */
	r->backed = false;
	return cu_vmm_covers(r->address, bytes);
}

/* With the lock held. */
static CUresult copy(const struct cu_work *w)
{
	struct range target = {w->to, true}, source = {w->from, true};
	if ((!w->to_host && !resolve(&target, w->count)) ||
	    (!w->from_host && !resolve(&source, w->count)) || !w->to)
		return CUDA_INVALID_VALUE;
	if (target.backed && source.backed)
		memmove((void *)w->to, (const void *)w->from, w->count);
	else if (w->to_host)
		memset((void *)w->to, 0, w->count);
	return CUDA_SUCCESS;
}

static CUresult fill(const struct cu_work *w)
{
	struct range target = {w->to, true};
	if (!w->to || w->to % w->width || w->count > SIZE_MAX / w->width ||
	    !resolve(&target, w->count * w->width))
		return CUDA_INVALID_VALUE;
	for (size_t i = 0; target.backed && i < w->count; i++)
		memcpy((char *)w->to + i * w->width, &w->value, w->width);
	return CUDA_SUCCESS;
}

CUresult cu_work(const char *function, const struct cu_work *work)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc || !work->count)
		return rc;
	pthread_mutex_lock(&cu_lock);
	rc = work->width ? fill(work) : work->from ? copy(work) : CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

uint64_t cu_work_time(CUdevice device, const struct cu_work *w)
{
	unsigned speed = cu_device(device)->gpu.memory_gb_s; /* bytes in a nanosecond */
	if (!speed || w->to_host || w->from_host)
		return 0;
	return (w->width ? w->count * w->width : 2 * w->count) / speed;
}

/* After all work that the context was given. */
static CUresult work_now(const char *function, const struct cu_work *work)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	cu_time_wait(ctx, NULL);
	return cu_work(function, work);
}

static CUresult submit(const char *function, CUstream stream, struct cu_work work)
{
	enum cu_node_type type = work.width ? CU_NODE_MEMSET : CU_NODE_MEMCPY;
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	work.length = cu_work_time(ctx->device, &work);
	if (cu_capture_work(stream, type, &work, &rc))
		return rc;
	rc = cu_work(function, &work);
	if (!rc && work.length)
		cu_time_submit(ctx, stream, work.length);
	return rc;
}

#define WORK(target, source, host_to, host_from)                                    \
	((struct cu_work){.to = (uintptr_t)(target), .from = (uintptr_t)(source),   \
			  .to_host = (host_to), .from_host = (host_from), .count = bytes})

#define COPY(name, to_type, from_type, to_is_host, from_is_host)                          \
	API CUresult name(to_type to, from_type from, size_t bytes)                        \
	{                                                                                  \
		struct cu_work work = WORK(to, from, to_is_host, from_is_host);            \
		return work_now(__func__, &work);                                          \
	}
#define COPY_ASYNC(name, to_type, from_type, to_is_host, from_is_host)                     \
	API CUresult name(to_type to, from_type from, size_t bytes, CUstream stream)       \
	{                                                                                  \
		return submit(__func__, stream, WORK(to, from, to_is_host, from_is_host)); \
	}
#define TO_DEVICE(name) COPY(name, CUdeviceptr, const void *, false, true)
#define TO_DEVICE_ASYNC(name) COPY_ASYNC(name, CUdeviceptr, const void *, false, true)
#define TO_HOST(name) COPY(name, void *, CUdeviceptr, true, false)
#define TO_HOST_ASYNC(name) COPY_ASYNC(name, void *, CUdeviceptr, true, false)
#define ON_DEVICE(name)                                                                    \
	API CUresult name(CUdeviceptr to, CUdeviceptr from, size_t bytes)                  \
	{                                                                                  \
		return submit(__func__, NULL, WORK(to, from, false, false));               \
	}
#define ON_DEVICE_ASYNC(name) COPY_ASYNC(name, CUdeviceptr, CUdeviceptr, false, false)
#define FILLING                                                                     \
	((struct cu_work){.to = (uintptr_t)to, .width = sizeof value,               \
			  .count = count, .value = value})
#define FILL(name, type)                                                                 \
	API CUresult name(CUdeviceptr to, type value, size_t count)                      \
	{                                                                                \
		return submit(__func__, NULL, FILLING);                                  \
	}
#define FILL_ASYNC(name, type)                                                           \
	API CUresult name(CUdeviceptr to, type value, size_t count, CUstream stream)     \
	{                                                                                \
		return submit(__func__, stream, FILLING);                                \
	}

TO_DEVICE(cuMemcpyHtoD_v2)
TO_DEVICE(cuMemcpyHtoD_v2_ptds)
TO_DEVICE_ASYNC(cuMemcpyHtoDAsync_v2)
TO_DEVICE_ASYNC(cuMemcpyHtoDAsync_v2_ptsz)
TO_HOST(cuMemcpyDtoH_v2)
TO_HOST(cuMemcpyDtoH_v2_ptds)
TO_HOST_ASYNC(cuMemcpyDtoHAsync_v2)
TO_HOST_ASYNC(cuMemcpyDtoHAsync_v2_ptsz)
ON_DEVICE(cuMemcpyDtoD_v2)
ON_DEVICE(cuMemcpyDtoD_v2_ptds)
ON_DEVICE_ASYNC(cuMemcpyDtoDAsync_v2)
ON_DEVICE_ASYNC(cuMemcpyDtoDAsync_v2_ptsz)
FILL(cuMemsetD8_v2, unsigned char)
FILL(cuMemsetD8_v2_ptds, unsigned char)
FILL(cuMemsetD32_v2, unsigned)
FILL(cuMemsetD32_v2_ptds, unsigned)
FILL_ASYNC(cuMemsetD8Async, unsigned char)
FILL_ASYNC(cuMemsetD8Async_ptsz, unsigned char)
FILL_ASYNC(cuMemsetD32Async, unsigned)
FILL_ASYNC(cuMemsetD32Async_ptsz, unsigned)

enum { MEMORY_TYPE = 2, ON_HOST = 1, ON_DEVICE = 2 };

/* 0: it is no memory that the driver knows. */
static unsigned type_of(CUdeviceptr address)
{
	pthread_mutex_lock(&cu_lock);
	const struct cu_alloc *a = cu_find(address);
	unsigned type = a ? (a->kind == CU_HOST ? ON_HOST : ON_DEVICE)
			  : cu_vmm_covers(address, 1) ? ON_DEVICE : 0;
	pthread_mutex_unlock(&cu_lock);
	return type;
}

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	unsigned type = type_of(address);
	if (!data || !type || attribute != MEMORY_TYPE)
		return CUDA_INVALID_VALUE;
	memcpy(data, &type, sizeof type);
	return CUDA_SUCCESS;
}

static bool is_host(CUdeviceptr address)
{
	return type_of(address) != ON_DEVICE;
}

/* Which of the two is the host's shows by the address. */
#define ANY(name)                                                                          \
	API CUresult name(CUdeviceptr to, CUdeviceptr from, size_t bytes)                  \
	{                                                                                  \
		return submit(__func__, NULL, WORK(to, from, is_host(to), is_host(from))); \
	}
#define ANY_ASYNC(name)                                                                      \
	API CUresult name(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)   \
	{                                                                                    \
		return submit(__func__, stream, WORK(to, from, is_host(to), is_host(from))); \
	}

ANY(cuMemcpy)
ANY(cuMemcpy_ptds)
ANY_ASYNC(cuMemcpyAsync)
ANY_ASYNC(cuMemcpyAsync_ptsz)
