/* Arrays and mipmapped arrays. What they take was measured on an H200 (driver 580.159.04): the
 * layout in array_layout.c, in whole pages above 1 MiB, in shared pages up to that. A handle is the
 * address of a range that nothing else has. */
#define _GNU_SOURCE
#include "array.h"
#include "small.h"

#include <stdlib.h>

enum { LAYERED = 0x1, CUBEMAP = 0x4, SPARSE = 0x40, DEFERRED = 0x80, VIDEO = 0x100 };
enum { KNOWN_FLAGS = 0x1cf, FLAT_MOST = 131072, DEEP_MOST = 16384 };

#define SMALL_MOST MIB
#define STEP (UINT64_C(64) << 10)

struct array {
	struct cu_alloc alloc;
	uint64_t needs; /* bytes, for who maps them later */
	bool mapped_later, mipmapped;
};

struct requirements {
	size_t size, alignment;
	unsigned reserved[4];
};

static bool is_valid(const struct cu_shape *s)
{
	size_t most = s->depth && !(s->flags & (LAYERED | CUBEMAP)) ? DEEP_MOST : FLAT_MOST;
	bool video = s->flags & VIDEO;
	if (!s->width || s->width > most || s->height > most || s->depth > most)
		return false;
	if (s->flags & ~(unsigned)KNOWN_FLAGS || (s->flags & SPARSE && s->flags & DEFERRED))
		return false;
	if (s->flags & CUBEMAP && (s->width != s->height || !s->depth || s->depth % 6))
		return false;
	if (s->channels != 1 && s->channels != 2 && s->channels != 4 && !(video && s->channels == 3))
		return false;
	return cu_texel_known(s->format);
}

/* With the lock held. */
static CUresult place(struct array *a)
{
	struct cu_alloc *m = &a->alloc;
	if (m->kind == CU_SMALL_ARRAY)
		return cu_small_alloc(m);
	m->charge = a->mapped_later ? 0 : cu_round(m->size, CU_PAGE);
	m->mapped = cu_round(m->size, CU_PAGE);
	CUresult rc = cu_charge(m->ctx->device, m->charge);
	if (rc)
		return rc;
	m->base = (uintptr_t)cu_map(m->mapped);
	if (m->base)
		return CUDA_SUCCESS;
	cu_uncharge(m->ctx->device, m->charge);
	return CUDA_OUT_OF_MEMORY;
}

static CUresult create(const char *function, void **out, const struct cu_shape *shape)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!out || !shape || !is_valid(shape))
		return CUDA_INVALID_VALUE;
	uint64_t size = cu_array_bytes(shape);
	bool later = shape->flags & (SPARSE | DEFERRED);
	struct array *a = calloc(1, sizeof *a);
	if (!a)
		return CUDA_OUT_OF_MEMORY;
	a->alloc = (struct cu_alloc){.size = size, .ctx = ctx, .kind = CU_ARRAY};
	if (!later && size <= SMALL_MOST)
		a->alloc.kind = CU_SMALL_ARRAY;
	a->needs = shape->flags & DEFERRED ? cu_round(size, STEP) : 0;
	a->mapped_later = later;
	a->mipmapped = shape->levels > 0;
	if (later)
		a->alloc.size = 1; /* an array that nothing is mapped to has a name and no size */
	pthread_mutex_lock(&cu_lock);
	rc = place(a);
	if (!rc)
		cu_add(&a->alloc);
	pthread_mutex_unlock(&cu_lock);
	if (rc)
		free(a);
	else
		*out = (void *)a->alloc.base;
	return rc;
}

CUresult cu_array_over(CUcontext ctx, int number, void **out)
{
	struct array *a = calloc(1, sizeof *a);
	if (!a || !fg_object_hold(number, fg_object(number))) {
		free(a);
		return CUDA_OUT_OF_MEMORY;
	}
	a->alloc = (struct cu_alloc){.size = 1, .mapped = CU_PAGE, .ctx = ctx, .kind = CU_ARRAY,
				     .object = number + 1, .base = (uintptr_t)cu_map(CU_PAGE)};
	a->mipmapped = true;
	cu_add(&a->alloc);
	*out = (void *)a->alloc.base;
	return CUDA_SUCCESS;
}

/* With the lock held: the array of a handle, or NULL. */
static struct array *find(const void *handle, bool mipmapped)
{
	struct cu_alloc *m = cu_find((uintptr_t)handle);
	if (!m || m->base != (uintptr_t)handle || (m->kind != CU_ARRAY && m->kind != CU_SMALL_ARRAY))
		return NULL;
	struct array *a = (struct array *)m;
	return a->mipmapped == mipmapped ? a : NULL;
}

static CUresult destroy(const char *function, void *handle, bool mipmapped)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	struct array *a = find(handle, mipmapped);
	if (a) {
		cu_bound_end(handle);
		cu_remove(&a->alloc);
		cu_give_back(&a->alloc);
		free(a);
	}
	pthread_mutex_unlock(&cu_lock);
	return a ? CUDA_SUCCESS : CUDA_INVALID_HANDLE;
}

static CUresult requirements(const char *function, struct requirements *out, void *handle,
			     CUdevice device, bool mipmapped)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!out || !cu_device(device))
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	const struct array *a = find(handle, mipmapped);
	if (a && a->needs)
		*out = (struct requirements){.size = a->needs, .alignment = STEP};
	else
		rc = CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

struct flat_v1 {
	unsigned width, height;
	int format;
	unsigned channels;
};

struct flat {
	size_t width, height;
	int format;
	unsigned channels;
};

struct deep_v1 {
	unsigned width, height, depth;
	int format;
	unsigned channels, flags;
};

struct deep {
	size_t width, height, depth;
	int format;
	unsigned channels, flags;
};

#define SHAPE(d, deep_, flags_, levels_) \
	{(d)->width, (d)->height, deep_, (d)->format, (d)->channels, flags_, levels_}

API CUresult cuArrayCreate(void **out, const struct flat_v1 *d)
{
	const struct cu_shape s = SHAPE(d ? d : &(struct flat_v1){0}, 0, 0, 0);
	return create(__func__, out, d ? &s : NULL);
}

API CUresult cuArrayCreate_v2(void **out, const struct flat *d)
{
	const struct cu_shape s = SHAPE(d ? d : &(struct flat){0}, 0, 0, 0);
	return create(__func__, out, d ? &s : NULL);
}

API CUresult cuArray3DCreate(void **out, const struct deep_v1 *d)
{
	const struct cu_shape s = SHAPE(d ? d : &(struct deep_v1){0}, d ? d->depth : 0,
					d ? d->flags : 0, 0);
	return create(__func__, out, d ? &s : NULL);
}

API CUresult cuArray3DCreate_v2(void **out, const struct deep *d)
{
	const struct cu_shape s = SHAPE(d ? d : &(struct deep){0}, d ? d->depth : 0,
					d ? d->flags : 0, 0);
	return create(__func__, out, d ? &s : NULL);
}

API CUresult cuMipmappedArrayCreate(void **out, const struct deep *d, unsigned levels)
{
	const struct cu_shape s = SHAPE(d ? d : &(struct deep){0}, d ? d->depth : 0,
					d ? d->flags : 0, levels);
	return create(__func__, out, d && levels ? &s : NULL);
}

API CUresult cuArrayDestroy(void *array)
{
	return destroy(__func__, array, false);
}

API CUresult cuMipmappedArrayDestroy(void *array)
{
	return destroy(__func__, array, true);
}

API CUresult cuArrayGetMemoryRequirements(struct requirements *out, void *array, CUdevice device)
{
	return requirements(__func__, out, array, device, false);
}

API CUresult cuMipmappedArrayGetMemoryRequirements(struct requirements *out, void *array,
						   CUdevice device)
{
	return requirements(__func__, out, array, device, true);
}
