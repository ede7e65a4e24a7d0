/* IPC handles. As measured with driver 580.159.04: the same handle at each call; a process that
 * opens one again gets the same address and has to close it as often; the maker cannot open its
 * own (201); memory lives until the last has closed it; small pieces come with their whole block. */
#define _GNU_SOURCE
#include "cuda.h"
#include "small.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct handle {
	uint64_t object, size, offset, mapped;
	int32_t number, pid;
	unsigned char padding[24];
};

_Static_assert(sizeof(struct handle) == 64, "as CUipcMemHandle");

/* What is mapped of an object, for all pieces of it that this process has open. */
struct window {
	uint64_t object;
	uintptr_t base;
	size_t mapped;
	unsigned pieces;
	struct window *next;
};

struct import {
	struct cu_alloc alloc;
	struct window *window;
	unsigned opens;
	int number;
};

static struct window *windows;

/* With the lock held. */
static CUresult give(struct cu_alloc *a, struct handle *out)
{
	uintptr_t base = a->base;
	if (a->kind == CU_SMALL) {
		out->number = cu_small_share(a, &base);
	} else if (a->kind == CU_LARGE) {
		if (!a->object)
			a->object = fg_object_make(cu_device(a->ctx->device)->gpu.key, a->charge) + 1;
		out->number = a->object - 1;
	} else {
		return CUDA_INVALID_VALUE;
	}
	if (out->number < 0)
		return CUDA_UNKNOWN;
	out->object = fg_object(out->number);
	out->size = a->size;
	out->offset = a->base - base;
	out->mapped = a->kind == CU_SMALL ? CU_PAGE : a->mapped;
	out->pid = getpid();
	return CUDA_SUCCESS;
}

API CUresult cuIpcGetMemHandle(struct handle *out, CUdeviceptr pointer)
{
	CUcontext ctx;
	struct handle handle = {0};
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	struct cu_alloc *a = cu_find((uintptr_t)pointer);
	rc = a ? give(a, &handle) : CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	if (!rc)
		*out = handle;
	return rc;
}

static struct window *open_window(const struct handle *h)
{
	for (struct window *w = windows; w; w = w->next)
		if (w->object == h->object)
			return w;
	struct window *w = calloc(1, sizeof *w);
	if (w)
		w->base = (uintptr_t)cu_map(h->mapped);
	if (!w || !w->base) {
		free(w);
		return NULL;
	}
	w->object = h->object;
	w->mapped = h->mapped;
	w->next = windows;
	windows = w;
	return w;
}

static void close_window(struct window *w)
{
	if (--w->pieces)
		return;
	struct window **link = &windows;
	while (*link != w)
		link = &(*link)->next;
	*link = w->next;
	cu_unmap((void *)w->base, w->mapped);
	free(w);
}

void cu_import_end(struct cu_alloc *alloc)
{
	struct import *import = (struct import *)alloc;
	close_window(import->window);
	fg_object_drop(import->number);
}

static CUresult open_new(CUcontext ctx, const struct handle *h, struct import **out)
{
	struct import *import = calloc(1, sizeof *import);
	if (!import || !fg_object_hold(h->number, h->object)) {
		free(import);
		return CUDA_INVALID_VALUE;
	}
	import->window = open_window(h);
	if (!import->window) {
		fg_object_drop(h->number);
		free(import);
		return CUDA_OUT_OF_MEMORY;
	}
	import->window->pieces++;
	import->number = h->number;
	import->alloc = (struct cu_alloc){.base = import->window->base + h->offset, .size = h->size,
					  .kind = CU_IMPORT, .ctx = ctx};
	cu_add(&import->alloc);
	*out = import;
	return CUDA_SUCCESS;
}

static struct import *find_open(const struct handle *h)
{
	for (const struct window *w = windows; w; w = w->next) {
		struct cu_alloc *a = w->object == h->object ? cu_find(w->base + h->offset) : NULL;
		if (a && a->kind == CU_IMPORT)
			return (struct import *)a;
	}
	return NULL;
}

static CUresult open_handle(const char *function, CUdeviceptr *out, struct handle h, unsigned flags)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!out || flags != 1)
		return CUDA_INVALID_VALUE;
	if (h.pid == getpid())
		return CUDA_INVALID_CONTEXT;
	pthread_mutex_lock(&cu_lock);
	struct import *import = find_open(&h);
	if (!import)
		rc = open_new(ctx, &h, &import);
	if (!rc) {
		import->opens++;
		*out = import->alloc.base;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, struct handle handle, unsigned flags)
{
	return open_handle(__func__, out, handle, flags);
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct handle handle, unsigned flags)
{
	return open_handle(__func__, out, handle, flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	rc = CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	struct cu_alloc *a = cu_find((uintptr_t)pointer);
	if (a && a->kind == CU_IMPORT && a->base == pointer) {
		struct import *import = (struct import *)a;
		if (!--import->opens) {
			cu_remove(a);
			cu_import_end(a);
			free(import);
		}
		rc = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}
