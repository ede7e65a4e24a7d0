/* External memory from descriptors of physical memory. As measured: the import closes the descriptor;
 * what is mapped of it outlives the handle, until it is freed. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>
#include <unistd.h>

enum { DESCRIPTOR = 1 };

struct description {
	int type;
	union {
		int fd;
		void *pointers[2];
	} handle;
	unsigned long long size;
	unsigned flags, reserved[16];
};

struct part {
	unsigned long long offset, size;
	unsigned flags, reserved[16];
};

struct external {
	int number;
	size_t size;
	struct external *next;
};

static struct external *externals;

static struct external **find(const struct external *memory)
{
	struct external **link = &externals;
	while (*link && *link != memory)
		link = &(*link)->next;
	return link;
}

API CUresult cuImportExternalMemory(struct external **out, const struct description *d)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (!out || !d || d->type != DESCRIPTOR || !d->size)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	int number = fg_object_import(d->handle.fd);
	struct external *e = calloc(1, sizeof *e);
	if (e && number >= 0 && fg_object_hold(number, fg_object(number))) {
		*e = (struct external){number, d->size, externals};
		externals = e;
		*out = e;
		close(d->handle.fd);
	} else {
		free(e);
		rc = CUDA_INVALID_VALUE;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

/* With the lock held. */
static CUresult map(CUcontext ctx, const struct external *e, const struct part *d, CUdeviceptr *out)
{
	struct cu_alloc *a = calloc(1, sizeof *a);
	if (!a)
		return CUDA_OUT_OF_MEMORY;
	*a = (struct cu_alloc){.size = d->size, .mapped = cu_round(d->size, CU_PAGE), .ctx = ctx,
			       .kind = CU_EXTERNAL, .object = e->number + 1};
	a->base = (uintptr_t)cu_map(a->mapped);
	fg_object_hold(e->number, fg_object(e->number));
	cu_add(a);
	*out = a->base;
	return CUDA_SUCCESS;
}

API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, struct external *memory,
					     const struct part *d)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	const struct external *e = *find(memory);
	if (!out || !e || !d || !d->size || d->offset > e->size || d->size > e->size - d->offset)
		rc = CUDA_INVALID_VALUE;
	else
		rc = map(ctx, e, d, out);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuExternalMemoryGetMappedMipmappedArray(void **out, struct external *memory,
						     const void *d)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	const struct external *e = *find(memory);
	rc = out && e && d ? cu_array_over(ctx, e->number, out) : CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuDestroyExternalMemory(struct external *memory)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	struct external **link = find(memory), *e = *link;
	if (e) {
		*link = e->next;
		fg_object_drop(e->number);
		free(e);
	}
	pthread_mutex_unlock(&cu_lock);
	return e ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
