/* A driver that does nothing, so that what the front adds is not hidden by what a driver does (the
 * simulated one opens and locks a file for each allocation). It keeps no accounts: an allocation
 * gets the address that was freed last, as from the real driver, or else the next one. That is
 * right for allocations of one size and one thread, which is all that calls.c asks for. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define BLOCK (UINT64_C(2) << 20)
#define STEP UINT64_C(512)
#define SMALL_MOST (UINT64_C(1) << 20)
#define CARD (UINT64_C(256) << 30)

static char context, pool, module;
static uint64_t next = UINT64_C(0x700000000000), freed_last;

/* Small pieces fill one block after the other; large ones are whole blocks. */
static uint64_t take(size_t bytes)
{
    uint64_t given = freed_last, step = bytes > SMALL_MOST ? BLOCK : STEP;
    freed_last = 0;
    if (given)
        return given;
    given = next;
    next += (bytes + step - 1) / step * step;
    return given;
}

API int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

API int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

API int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}

/* The first card of tests/shim/support.py. */
API int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    static const unsigned char mine[16] = {0x6d, 0x1c, 0x2f, 0x50, 0x8a, 0x3b, 0x4c, 0x7d,
                                           0x9e, 0x0f, 0,    0,    0,    0,    0,    0};
    (void)device;
    for (unsigned i = 0; i < sizeof mine; i++)
        uuid[i] = mine[i];
    return 0;
}

API int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

API int cuDevicePrimaryCtxRetain(void **out, int device)
{
    (void)device;
    *out = &context;
    return 0;
}

API int cuModuleUnload(void *unloaded)
{
    (void)unloaded;
    return 0;
}

API int cuDevicePrimaryCtxRelease(int device)
{
    (void)device;
    return 0;
}

API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = 1;
    return 0;
}

API int cuCtxSetCurrent(void *new)
{
    (void)new;
    return 0;
}

API int cuCtxGetCurrent(void **out)
{
    *out = &context;
    return 0;
}

API int cuCtxGetDevice(int *device)
{
    *device = 0;
    return 0;
}

API int cuMemAlloc_v2(uint64_t *pointer, size_t bytes)
{
    *pointer = take(bytes);
    return 0;
}

API int cuMemFree_v2(uint64_t pointer)
{
    freed_last = pointer;
    return 0;
}

API int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    *available = *total = CARD;
    return 0;
}

API int cuDeviceGetDefaultMemPool(void **out, int device)
{
    (void)device;
    *out = &pool;
    return 0;
}

API int cuDeviceGetMemPool(void **out, int device)
{
    return cuDeviceGetDefaultMemPool(out, device);
}

/* A pool that has reserved 32 MiB and has 20 MiB in use, as calls.c has at most. */
API int cuMemPoolGetAttribute(void *of, int attribute, void *value)
{
    (void)of;
    *(uint64_t *)value = (attribute == 7 ? UINT64_C(20) : UINT64_C(32)) << 20;
    return 0;
}

API int cuMemAllocAsync(uint64_t *pointer, size_t bytes, void *stream)
{
    (void)stream;
    *pointer = take(bytes);
    return 0;
}

API int cuMemFreeAsync(uint64_t pointer, void *stream)
{
    (void)stream;
    freed_last = pointer;
    return 0;
}

API int cuModuleLoadData(void **out, const void *image)
{
    (void)image;
    *out = &module;
    return 0;
}

API int cuModuleGetFunction(void **out, void *of, const char *name)
{
    (void)name;
    *out = of;
    return 0;
}

API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
                       void **extra)
{
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)stream, (void)parameters, (void)extra;
    return 0;
}

API int cuCtxSynchronize(void)
{
    return 0;
}

/* What the front asks besides. */

API int cuMemPoolSetAttribute(void *of, int attribute, void *value)
{
    (void)of, (void)attribute, (void)value;
    return 0;
}

API int cuMemPoolTrimTo(void *of, size_t keep)
{
    (void)of, (void)keep;
    return 0;
}

API int cuStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    *status = 0;
    return 0;
}

API int cuStreamQuery(void *stream)
{
    (void)stream;
    return 0;
}

API int cuStreamGetCtx(void *stream, void **out)
{
    (void)stream;
    *out = &context;
    return 0;
}

API int cuStreamGetDevice(void *stream, int *device)
{
    (void)stream;
    *device = 0;
    return 0;
}

API int cuThreadExchangeStreamCaptureMode(int *mode)
{
    *mode = 0;
    return 0;
}

API int cuDeviceGetGraphMemAttribute(int device, int attribute, void *value)
{
    (void)device, (void)attribute;
    *(uint64_t *)value = 0;
    return 0;
}
