/* Memory is set, or copied within the card: the driver does it by kernels, which take turns with
 * other processes' kernels (measured: those fall to 72 and 45 %), so it waits for the share's time
 * as they do. Copies from and to the host go past the multiprocessors, and past this gate. */
#include "launch.h"

static const char set, copy, copy_2d, copy_3d, copy_array;

#define SET_8 ap_estimate_key(&set, bytes)
#define SET_16 ap_estimate_key(&set, count * 2)
#define SET_32 ap_estimate_key(&set, count * 4)

#define SET(name, type, count, key)                                                              \
    LAUNCH(name##_v2, (CUdeviceptr pointer, type value, size_t count), (pointer, value, count),  \
           key, NULL, false)                                                                     \
    LAUNCH(name##_v2_ptds, (CUdeviceptr pointer, type value, size_t count),                      \
           (pointer, value, count), key, NULL, true)                                             \
    LAUNCH(name##Async, (CUdeviceptr pointer, type value, size_t count, CUstream stream),        \
           (pointer, value, count, stream), key, stream, false)                                  \
    LAUNCH(name##Async_ptsz, (CUdeviceptr pointer, type value, size_t count, CUstream stream),   \
           (pointer, value, count, stream), key, stream, true)

SET(cuMemsetD8, unsigned char, bytes, SET_8)
SET(cuMemsetD16, unsigned short, count, SET_16)
SET(cuMemsetD32, unsigned int, count, SET_32)

#define SET_2D_KEY(size) ap_estimate_key(&set, width * height * size)
#define SET_2D_PARAMETERS(type)                                                                  \
    (CUdeviceptr pointer, size_t pitch, type value, size_t width, size_t height)
#define SET_2D_ASYNC(type)                                                                       \
    (CUdeviceptr pointer, size_t pitch, type value, size_t width, size_t height, CUstream stream)
#define SET_2D(name, type, size)                                                                 \
    LAUNCH(name##_v2, SET_2D_PARAMETERS(type), (pointer, pitch, value, width, height),           \
           SET_2D_KEY(size), NULL, false)                                                        \
    LAUNCH(name##_v2_ptds, SET_2D_PARAMETERS(type), (pointer, pitch, value, width, height),      \
           SET_2D_KEY(size), NULL, true)                                                         \
    LAUNCH(name##Async, SET_2D_ASYNC(type), (pointer, pitch, value, width, height, stream),      \
           SET_2D_KEY(size), stream, false)                                                      \
    LAUNCH(name##Async_ptsz, SET_2D_ASYNC(type), (pointer, pitch, value, width, height, stream), \
           SET_2D_KEY(size), stream, true)

SET_2D(cuMemsetD2D8, unsigned char, 1)
SET_2D(cuMemsetD2D16, unsigned short, 2)
SET_2D(cuMemsetD2D32, unsigned int, 4)

#define COPY_KEY ap_estimate_key(&copy, bytes)
#define COPY_PARAMETERS (CUdeviceptr to, CUdeviceptr from, size_t bytes)
#define COPY_ASYNC (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)

LAUNCH(cuMemcpyDtoD_v2, COPY_PARAMETERS, (to, from, bytes), COPY_KEY, NULL, false)
LAUNCH(cuMemcpyDtoD_v2_ptds, COPY_PARAMETERS, (to, from, bytes), COPY_KEY, NULL, true)
LAUNCH(cuMemcpyDtoDAsync_v2, COPY_ASYNC, (to, from, bytes, stream), COPY_KEY, stream, false)
LAUNCH(cuMemcpyDtoDAsync_v2_ptsz, COPY_ASYNC, (to, from, bytes, stream), COPY_KEY, stream, true)

/* Of these it shows only now whether the host has a part in it. */
enum { MEMORY_TYPE = 2, ON_HOST = 1, ON_DEVICE = 2 };

static bool on_device(CUdeviceptr pointer)
{
    const struct real_cuda *real = real_cuda();
    unsigned int type = 0;
    return real->cuPointerGetAttribute &&
           real->cuPointerGetAttribute(&type, MEMORY_TYPE, pointer) == CUDA_SUCCESS &&
           type == ON_DEVICE;
}

/* 0, the key of nothing: it goes to the driver at once. */
static uint64_t key_of_any(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return on_device(to) && on_device(from) ? COPY_KEY : 0;
}

static uint64_t key_of_2d(const CUDA_MEMCPY2D *what)
{
    if (!what || what->from.type == ON_HOST || what->to.type == ON_HOST)
        return 0;
    return ap_estimate_key(&copy_2d, what->width * what->height);
}

static uint64_t key_of_3d(const CUDA_MEMCPY3D *what)
{
    if (!what || what->from.type == ON_HOST || what->to.type == ON_HOST)
        return 0;
    return ap_estimate_key(&copy_3d, what->width * what->height * what->depth);
}

#define ANY_KEY key_of_any(to, from, bytes)
LAUNCH(cuMemcpy, COPY_PARAMETERS, (to, from, bytes), ANY_KEY, NULL, false)
LAUNCH(cuMemcpy_ptds, COPY_PARAMETERS, (to, from, bytes), ANY_KEY, NULL, true)
LAUNCH(cuMemcpyAsync, COPY_ASYNC, (to, from, bytes, stream), ANY_KEY, stream, false)
LAUNCH(cuMemcpyAsync_ptsz, COPY_ASYNC, (to, from, bytes, stream), ANY_KEY, stream, true)

#define SHAPED(name, type, key)                                                                  \
    LAUNCH(name##_v2, (const type *what), (what), key(what), NULL, false)                        \
    LAUNCH(name##_v2_ptds, (const type *what), (what), key(what), NULL, true)
#define SHAPED_ASYNC(name, type, key)                                                            \
    LAUNCH(name##_v2, (const type *what, CUstream stream), (what, stream), key(what), stream,    \
           false)                                                                                \
    LAUNCH(name##_v2_ptsz, (const type *what, CUstream stream), (what, stream), key(what),       \
           stream, true)

SHAPED(cuMemcpy2D, CUDA_MEMCPY2D, key_of_2d)
SHAPED(cuMemcpy2DUnaligned, CUDA_MEMCPY2D, key_of_2d)
SHAPED_ASYNC(cuMemcpy2DAsync, CUDA_MEMCPY2D, key_of_2d)
SHAPED(cuMemcpy3D, CUDA_MEMCPY3D, key_of_3d)
SHAPED_ASYNC(cuMemcpy3DAsync, CUDA_MEMCPY3D, key_of_3d)

#define ARRAY_KEY ap_estimate_key(&copy_array, bytes)
#define TO_ARRAY (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes)
#define FROM_ARRAY (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes)
#define ARRAYS (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes)

LAUNCH(cuMemcpyDtoA_v2, TO_ARRAY, (to, to_offset, from, bytes), ARRAY_KEY, NULL, false)
LAUNCH(cuMemcpyDtoA_v2_ptds, TO_ARRAY, (to, to_offset, from, bytes), ARRAY_KEY, NULL, true)
LAUNCH(cuMemcpyAtoD_v2, FROM_ARRAY, (to, from, from_offset, bytes), ARRAY_KEY, NULL, false)
LAUNCH(cuMemcpyAtoD_v2_ptds, FROM_ARRAY, (to, from, from_offset, bytes), ARRAY_KEY, NULL, true)
LAUNCH(cuMemcpyAtoA_v2, ARRAYS, (to, to_offset, from, from_offset, bytes), ARRAY_KEY, NULL, false)
LAUNCH(cuMemcpyAtoA_v2_ptds, ARRAYS, (to, to_offset, from, from_offset, bytes), ARRAY_KEY, NULL,
       true)
