/* Copies and fills. Ranges are checked as the driver checks them; bytes move where the memory
 * is backed, and are left out where it has addresses only. */
#define _GNU_SOURCE
#include "cuda.h"

#include <string.h>

enum place { DEVICE, HOST };

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

static CUresult copy(const char *function, uintptr_t to, enum place to_place, uintptr_t from,
		     enum place from_place, size_t bytes)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc || !bytes)
		return rc;
	struct range target = {to, true}, source = {from, true};
	pthread_mutex_lock(&cu_lock);
	if ((to_place == DEVICE && !resolve(&target, bytes)) ||
	    (from_place == DEVICE && !resolve(&source, bytes)) || !to || !from)
		rc = CUDA_INVALID_VALUE;
	else if (target.backed && source.backed)
		memmove((void *)to, (const void *)from, bytes);
	else if (to_place == HOST)
		memset((void *)to, 0, bytes);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

static CUresult fill(const char *function, uintptr_t to, uint32_t value, size_t width, size_t count)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc || !count)
		return rc;
	struct range target = {to, true};
	pthread_mutex_lock(&cu_lock);
	if (!to || to % width || count > SIZE_MAX / width || !resolve(&target, count * width))
		rc = CUDA_INVALID_VALUE;
	for (size_t i = 0; !rc && target.backed && i < count; i++)
		memcpy((char *)to + i * width, &value, width);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

#define TO_DEVICE(name)                                                                    \
	API CUresult name(CUdeviceptr to, const void *from, size_t bytes)                  \
	{                                                                                  \
		return copy(__func__, (uintptr_t)to, DEVICE, (uintptr_t)from, HOST, bytes); \
	}
#define TO_DEVICE_ASYNC(name)                                                              \
	API CUresult name(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) \
	{                                                                                  \
		(void)stream;                                                              \
		return copy(__func__, (uintptr_t)to, DEVICE, (uintptr_t)from, HOST, bytes); \
	}
#define TO_HOST(name)                                                                      \
	API CUresult name(void *to, CUdeviceptr from, size_t bytes)                        \
	{                                                                                  \
		return copy(__func__, (uintptr_t)to, HOST, (uintptr_t)from, DEVICE, bytes); \
	}
#define TO_HOST_ASYNC(name)                                                                \
	API CUresult name(void *to, CUdeviceptr from, size_t bytes, CUstream stream)       \
	{                                                                                  \
		(void)stream;                                                              \
		return copy(__func__, (uintptr_t)to, HOST, (uintptr_t)from, DEVICE, bytes); \
	}
#define ON_DEVICE(name)                                                                      \
	API CUresult name(CUdeviceptr to, CUdeviceptr from, size_t bytes)                    \
	{                                                                                    \
		return copy(__func__, (uintptr_t)to, DEVICE, (uintptr_t)from, DEVICE, bytes); \
	}
#define FILL(name, type)                                                            \
	API CUresult name(CUdeviceptr to, type value, size_t count)                 \
	{                                                                           \
		return fill(__func__, (uintptr_t)to, value, sizeof value, count);   \
	}
#define FILL_ASYNC(name, type)                                                      \
	API CUresult name(CUdeviceptr to, type value, size_t count, CUstream stream) \
	{                                                                           \
		(void)stream;                                                       \
		return fill(__func__, (uintptr_t)to, value, sizeof value, count);   \
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
FILL(cuMemsetD8_v2, unsigned char)
FILL(cuMemsetD8_v2_ptds, unsigned char)
FILL(cuMemsetD32_v2, unsigned)
FILL(cuMemsetD32_v2_ptds, unsigned)
FILL_ASYNC(cuMemsetD8Async, unsigned char)
FILL_ASYNC(cuMemsetD8Async_ptsz, unsigned char)
FILL_ASYNC(cuMemsetD32Async, unsigned)
FILL_ASYNC(cuMemsetD32Async_ptsz, unsigned)
