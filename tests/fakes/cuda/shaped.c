/* Copies and fills of rows, of slices and of arrays. They take the time of their bytes, as those in
 * copy.c do; the bytes move where both ends are linear memory, since arrays have none, and not
 * where a graph does it. */
#define _GNU_SOURCE
#include "timeline.h"

enum { HOST = 1, ARRAY = 3 };

/* One end of a copy, as the driver's headers have it. */
struct end_2d {
	size_t x, y;
	int type;
	void *host;
	CUdeviceptr device;
	void *array;
	size_t pitch;
};
struct end_3d {
	size_t x, y, z, level;
	int type;
	void *host;
	CUdeviceptr device;
	void *array, *reserved;
	size_t pitch, height;
};
struct copy_2d {
	struct end_2d from, to;
	size_t width, height;
};
struct copy_3d {
	struct end_3d from, to;
	size_t width, height, depth;
};

_Static_assert(sizeof(struct copy_2d) == 128, "as in the driver");
_Static_assert(sizeof(struct copy_3d) == 200, "as in the driver");

/* The first row; the distances from row to row, and from slice to slice. */
struct shape {
	struct cu_work row;
	bool has_bytes;
	size_t to_pitch, from_pitch, to_slice, from_slice, height, depth;
};

static CUresult move(const char *function, const struct shape *s)
{
	CUresult rc = CUDA_SUCCESS;
	for (size_t z = 0; !rc && s->has_bytes && z < s->depth; z++)
		for (size_t y = 0; !rc && y < s->height; y++) {
			struct cu_work row = s->row;
			row.to += z * s->to_slice + y * s->to_pitch;
			row.from += row.width ? 0 : z * s->from_slice + y * s->from_pitch;
			rc = cu_work(function, &row);
		}
	return rc;
}

static CUresult submit(const char *function, CUstream stream, const struct shape *s)
{
	enum cu_node_type type = s->row.width ? CU_NODE_MEMSET : CU_NODE_MEMCPY;
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	struct cu_work all = {.width = s->row.width};
	all.length = cu_work_time(ctx->device, &s->row) * s->height * s->depth;
	if (cu_capture_work(stream, type, &all, &rc))
		return rc;
	rc = move(function, s);
	if (!rc && all.length)
		cu_time_submit(ctx, stream, all.length);
	return rc;
}

static uintptr_t address_3d(const struct end_3d *e)
{
	uintptr_t base = e->type == HOST ? (uintptr_t)e->host : e->device;
	return base + (e->z * e->height + e->y) * e->pitch + e->x;
}

static CUresult deep(const char *function, CUstream stream, const struct copy_3d *c)
{
	if (!c)
		return CUDA_INVALID_VALUE;
	struct shape s = {
		.row = {.to = address_3d(&c->to), .to_host = c->to.type == HOST, .count = c->width,
			.from = address_3d(&c->from), .from_host = c->from.type == HOST},
		.has_bytes = c->to.type != ARRAY && c->from.type != ARRAY,
		.to_pitch = c->to.pitch, .to_slice = c->to.pitch * c->to.height,
		.from_pitch = c->from.pitch, .from_slice = c->from.pitch * c->from.height,
		.height = c->height, .depth = c->depth};
	return submit(function, stream, &s);
}

static struct end_3d in_space(const struct end_2d *e)
{
	return (struct end_3d){.x = e->x, .y = e->y, .type = e->type, .host = e->host,
			       .device = e->device, .pitch = e->pitch};
}

static CUresult flat(const char *function, CUstream stream, const struct copy_2d *c)
{
	if (!c)
		return CUDA_INVALID_VALUE;
	struct copy_3d slice = {.from = in_space(&c->from), .to = in_space(&c->to),
				.width = c->width, .height = c->height, .depth = 1};
	return deep(function, stream, &slice);
}

/* At least one end is an array. */
static CUresult array(const char *function, const void *one, size_t bytes)
{
	struct shape s = {.row = {.count = bytes}, .height = 1, .depth = 1};
	return one ? submit(function, NULL, &s) : CUDA_INVALID_VALUE;
}

static CUresult fill(const char *function, CUstream stream, CUdeviceptr to, size_t pitch,
		     struct cu_work row, size_t height)
{
	row.to = to;
	struct shape s = {.row = row, .has_bytes = true, .to_pitch = pitch, .height = height,
			  .depth = 1};
	return submit(function, stream, &s);
}

#define FLAT(name)                                                                         \
	API CUresult name(const struct copy_2d *what) { return flat(__func__, NULL, what); }
#define FLAT_ASYNC(name)                                                                   \
	API CUresult name(const struct copy_2d *what, CUstream stream)                      \
	{                                                                                  \
		return flat(__func__, stream, what);                                       \
	}
#define DEEP(name)                                                                         \
	API CUresult name(const struct copy_3d *what) { return deep(__func__, NULL, what); }
#define DEEP_ASYNC(name)                                                                   \
	API CUresult name(const struct copy_3d *what, CUstream stream)                      \
	{                                                                                  \
		return deep(__func__, stream, what);                                       \
	}
#define TO_ARRAY(name)                                                                     \
	API CUresult name(void *to, size_t offset, CUdeviceptr from, size_t bytes)          \
	{                                                                                  \
		(void)offset, (void)from;                                                  \
		return array(__func__, to, bytes);                                         \
	}
#define FROM_ARRAY(name)                                                                   \
	API CUresult name(CUdeviceptr to, void *from, size_t offset, size_t bytes)          \
	{                                                                                  \
		(void)to, (void)offset;                                                    \
		return array(__func__, from, bytes);                                       \
	}
#define ARRAYS(name)                                                                       \
	API CUresult name(void *to, size_t to_offset, void *from, size_t offset, size_t bytes) \
	{                                                                                  \
		(void)to_offset, (void)offset;                                             \
		return array(__func__, to ? from : to, bytes);                             \
	}
#define ROW ((struct cu_work){.width = sizeof value, .count = width, .value = value})
#define ROWS(name, type)                                                                   \
	API CUresult name(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) \
	{                                                                                  \
		return fill(__func__, NULL, to, pitch, ROW, height);                       \
	}
#define ROWS_ASYNC(name, type)                                                             \
	API CUresult name(CUdeviceptr to, size_t pitch, type value, size_t width,           \
			  size_t height, CUstream stream)                                  \
	{                                                                                  \
		return fill(__func__, stream, to, pitch, ROW, height);                     \
	}

FLAT(cuMemcpy2D_v2)
FLAT(cuMemcpy2D_v2_ptds)
FLAT(cuMemcpy2DUnaligned_v2)
FLAT(cuMemcpy2DUnaligned_v2_ptds)
FLAT_ASYNC(cuMemcpy2DAsync_v2)
FLAT_ASYNC(cuMemcpy2DAsync_v2_ptsz)
DEEP(cuMemcpy3D_v2)
DEEP(cuMemcpy3D_v2_ptds)
DEEP_ASYNC(cuMemcpy3DAsync_v2)
DEEP_ASYNC(cuMemcpy3DAsync_v2_ptsz)
TO_ARRAY(cuMemcpyDtoA_v2)
TO_ARRAY(cuMemcpyDtoA_v2_ptds)
FROM_ARRAY(cuMemcpyAtoD_v2)
FROM_ARRAY(cuMemcpyAtoD_v2_ptds)
ARRAYS(cuMemcpyAtoA_v2)
ARRAYS(cuMemcpyAtoA_v2_ptds)
ROWS(cuMemsetD2D8_v2, unsigned char)
ROWS(cuMemsetD2D8_v2_ptds, unsigned char)
ROWS(cuMemsetD2D16_v2, unsigned short)
ROWS(cuMemsetD2D16_v2_ptds, unsigned short)
ROWS(cuMemsetD2D32_v2, unsigned)
ROWS(cuMemsetD2D32_v2_ptds, unsigned)
ROWS_ASYNC(cuMemsetD2D8Async, unsigned char)
ROWS_ASYNC(cuMemsetD2D8Async_ptsz, unsigned char)
ROWS_ASYNC(cuMemsetD2D16Async, unsigned short)
ROWS_ASYNC(cuMemsetD2D16Async_ptsz, unsigned short)
ROWS_ASYNC(cuMemsetD2D32Async, unsigned)
ROWS_ASYNC(cuMemsetD2D32Async_ptsz, unsigned)
