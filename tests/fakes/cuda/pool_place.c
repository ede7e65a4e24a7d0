/* Pools by location (CUDA 13.0), and pools of other processes. */
#define _GNU_SOURCE
#include "pool.h"

#include <sys/mman.h>
#include <unistd.h>

struct location {
	int type, id;
};

enum { PINNED = 1, MANAGED = 2, FILE_DESCRIPTOR = 1 };

/* The default pools of the host and of managed memory. */
static struct cu_pool *others[4][3];

static CUresult pool_at(const char *function, CUmemoryPool *out, const struct location *at,
			int type, bool current)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!out || !at || (type != PINNED && type != MANAGED))
		return CUDA_INVALID_VALUE;
	if (at->type < LOCATION_DEVICE || at->type > LOCATION_HOST_NUMA)
		return CUDA_NOT_SUPPORTED;
	if (at->type == LOCATION_DEVICE && !cu_device(at->id))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	if (at->type == LOCATION_DEVICE && type == PINNED) {
		*out = cu_default_pool(at->id);
		if (current)
			*out = cu_device(at->id)->pool;
	} else {
		if (!others[at->type][type])
			others[at->type][type] = cu_new_pool(0, false);
		*out = others[at->type][type];
	}
	pthread_mutex_unlock(&cu_lock);
	return *out ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, const struct location *at, int type)
{
	return pool_at(__func__, out, at, type, false);
}

API CUresult cuMemGetMemPool(CUmemoryPool *out, const struct location *at, int type)
{
	return pool_at(__func__, out, at, type, true);
}

API CUresult cuMemSetMemPool(const struct location *at, int type, CUmemoryPool pool)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!at || at->type != LOCATION_DEVICE || type != PINNED || !cu_device(at->id))
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	cu_default_pool(at->id);
	if (cu_pool_known(pool) && pool->device == at->id)
		cu_device(at->id)->pool = pool;
	else
		rc = CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

/* The file behind the descriptor says no more than that it is a pool's. */
API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type,
					      unsigned long long flags)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || type != FILE_DESCRIPTOR || flags || !cu_pool_known(pool) || pool->is_default)
		return CUDA_INVALID_VALUE;
	int fd = memfd_create("pool", MFD_CLOEXEC);
	if (fd < 0)
		return CUDA_UNKNOWN;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type,
						unsigned long long flags)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || type != FILE_DESCRIPTOR || flags || lseek((int)(intptr_t)handle, 0, SEEK_CUR) < 0)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	*out = cu_new_pool(0, false);
	if (*out)
		(*out)->imported = true;
	pthread_mutex_unlock(&cu_lock);
	return *out ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}
