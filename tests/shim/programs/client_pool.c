/* The application's commands for memory pools, graphs and captures. Streams, pools, graphs and
 * executable graphs are named by number; stream 0 is the default stream, pool 0 the device's
 * default pool. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client_pool.h"
#include "driver.h"

#define SENTINEL 0xdeadbeefULL

void *named[NAMED][MANY];

/* What held streams wait for. */
static volatile unsigned gate;

void *cuda(const char *name)
{
    return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
}

struct pool_properties {
    int type, handle_types, location_type, location;
    void *windows;
    size_t most;
    unsigned char others[56];
};

struct location {
    int type, id;
};

void *pool_of(unsigned long number)
{
    if (number == 0)
        CALL(cuDeviceGetDefaultMemPool, void **, int)(&named[POOL][0], 0);
    return named[POOL][number % MANY];
}

static void answer(int result, pointer p)
{
    printf("%d %llu\n", result, p);
}

static void allocate(const char *what, size_t bytes, unsigned long number, unsigned pool)
{
    pointer p = SENTINEL;
    void *s = named[STREAM][number % MANY];
    int result;
    if (!strcmp(what, "pool-async"))
        result = CALL(cuMemAllocAsync, pointer *, size_t, void *)(&p, bytes, s);
    else if (!strcmp(what, "pool-async-ptsz"))
        result = CALL(cuMemAllocAsync_ptsz, pointer *, size_t, void *)(&p, bytes, s);
    else if (!strcmp(what, "pool-from"))
        result = CALL(cuMemAllocFromPoolAsync, pointer *, size_t, void *, void *)(
            &p, bytes, pool_of(pool), s);
    else
        result = CALL(cuMemAllocFromPoolAsync_ptsz, pointer *, size_t, void *, void *)(
            &p, bytes, pool_of(pool), s);
    answer(result, p);
}

/* Allocates until it is refused; with `churn`, frees each at once. */
static void fill(size_t bytes, unsigned long most, bool churn)
{
    unsigned long count = 0;
    int result = 0;
    while (count < most && result == 0) {
        pointer p;
        result = CALL(cuMemAllocAsync, pointer *, size_t, void *)(&p, bytes, NULL);
        if (result == 0 && churn)
            result = CALL(cuMemFreeAsync, pointer, void *)(p, NULL);
        count += result == 0;
    }
    printf("%d %lu\n", result, count);
}

static int synchronize(const char *what, unsigned long number)
{
    void *s = named[STREAM][number % MANY], *event = NULL;
    if (!strcmp(what, "pool-sync"))
        return CALL(cuStreamSynchronize, void *)(s);
    if (!strcmp(what, "pool-sync-ptsz"))
        return CALL(cuStreamSynchronize_ptsz, void *)(s);
    if (!strcmp(what, "pool-sync-context"))
        return CALL(cuCtxSynchronize, void)();
    CALL(cuEventCreate, void **, unsigned)(&event, 0);
    CALL(cuEventRecord, void *, void *)(event, s);
    return CALL(cuEventSynchronize, void *)(event);
}

static int make_pool(unsigned long number, int type, int location_type, int location)
{
    struct pool_properties p = {
        .type = type, .handle_types = 1, .location_type = location_type, .location = location};
    return CALL(cuMemPoolCreate, void **, const void *)(&named[POOL][number % MANY], &p);
}

/* Exports a pool and imports it again, under another number. */
static int import_pool(unsigned long from, unsigned long to)
{
    int fd = -1;
    int result = CALL(cuMemPoolExportToShareableHandle, void *, void *, int, unsigned long long)(
        &fd, pool_of(from), 1, 0);
    if (result)
        return result;
    return CALL(cuMemPoolImportFromShareableHandle, void **, void *, int, unsigned long long)(
        &named[POOL][to % MANY], (void *)(intptr_t)fd, 1, 0);
}

static void attribute(unsigned long number, int which)
{
    uint64_t value = SENTINEL;
    int result =
        CALL(cuMemPoolGetAttribute, void *, int, void *)(pool_of(number), which, &value);
    printf("%d %llu\n", result, (unsigned long long)value);
}

static int threshold(unsigned long number, unsigned long bytes)
{
    uint64_t value = bytes;
    return CALL(cuMemPoolSetAttribute, void *, int, void *)(pool_of(number), 4, &value);
}

static int by_place(const char *what, unsigned long number, int type, int allocation)
{
    struct location at = {type, 0};
    void **slot = &named[POOL][number % MANY];
    if (!strcmp(what, "pool-place-set"))
        return CALL(cuMemSetMemPool, void *, int, void *)(&at, allocation, pool_of(number));
    if (!strcmp(what, "pool-place-current"))
        return CALL(cuMemGetMemPool, void **, void *, int)(slot, &at, allocation);
    return CALL(cuMemGetDefaultMemPool, void **, void *, int)(slot, &at, allocation);
}

struct work {
    void *context;
    size_t steps, most, out[3];
    unsigned seed;
};

/* One of two pools or linear memory; freed in stream order or at once; now and then a trim. */
static void step(struct work *w, pointer *place, void *stream)
{
    unsigned what = (unsigned)rand_r(&w->seed);
    int result;
    if (*place) {
        result = what % 4 ? CALL(cuMemFreeAsync, pointer, void *)(*place, stream)
                          : CALL(cuMemFree_v2, pointer)(*place);
        *place = 0;
        w->out[0] += result != 0;
        if (what % 16 == 0)
            CALL(cuStreamSynchronize, void *)(stream);
        if (what % 64 == 0)
            CALL(cuMemPoolTrimTo, void *, size_t)(named[POOL][1], 0);
        return;
    }
    size_t bytes = 1 + ((size_t)rand_r(&w->seed) << 16 ^ (size_t)rand_r(&w->seed)) % w->most;
    if (what % 8 == 0)
        result = CALL(cuMemAlloc_v2, pointer *, size_t)(place, bytes);
    else if (what % 2)
        result = CALL(cuMemAllocAsync, pointer *, size_t, void *)(place, bytes, stream);
    else
        result = CALL(cuMemAllocFromPoolAsync, pointer *, size_t, void *, void *)(
            place, bytes, named[POOL][1], stream);
    w->out[0] += result != 0 && result != 2;
    w->out[1] += result == 0;
    w->out[2] += result == 2;
    if (result)
        *place = 0;
}

static void *work(void *argument)
{
    struct work *w = argument;
    pointer held[16] = {0};
    void *stream = NULL;
    CALL(cuCtxSetCurrent, void *)(w->context);
    w->out[0] += CALL(cuStreamCreate, void **, unsigned)(&stream, 1) != 0;
    for (size_t i = 0; i < w->steps; i++)
        step(w, &held[(unsigned)rand_r(&w->seed) % 16], stream);
    for (unsigned i = 0; i < 16; i++)
        if (held[i])
            w->out[0] += CALL(cuMemFreeAsync, pointer, void *)(held[i], stream) != 0;
    w->out[0] += CALL(cuStreamDestroy_v2, void *)(stream) != 0;
    return NULL;
}

/* Errors other than out of memory, grants, refusals. */
static void threads(size_t steps, size_t most, unsigned seed, unsigned count)
{
    pthread_t thread[16];
    struct work all[16] = {{0}};
    size_t sum[3] = {0};
    void *context = NULL;
    CALL(cuCtxGetCurrent, void **)(&context);
    for (unsigned i = 0; i < count && i < 16; i++) {
        all[i] = (struct work){.context = context, .steps = steps, .most = most, .seed = seed + i};
        pthread_create(&thread[i], NULL, work, &all[i]);
    }
    for (unsigned i = 0; i < count && i < 16; i++) {
        pthread_join(thread[i], NULL);
        for (int k = 0; k < 3; k++)
            sum[k] += all[i].out[k];
    }
    printf("%zu %zu %zu\n", sum[0], sum[1], sum[2]);
}

static int simple(const char *what, unsigned long a, unsigned long b, unsigned c, unsigned e)
{
    void *s = named[STREAM][b % MANY];
    if (!strcmp(what, "pool-stream"))
        return CALL(cuStreamCreate, void **, unsigned)(&named[STREAM][a % MANY], 1);
    if (!strcmp(what, "pool-stream-hold"))
        return CALL(cuStreamWaitValue32_v2, void *, pointer, unsigned, unsigned)(
            named[STREAM][a % MANY], (uintptr_t)&gate, 1, 0);
    if (!strcmp(what, "pool-stream-go"))
        return (gate = 1) - 1;
    if (!strcmp(what, "pool-stream-end"))
        return CALL(cuStreamDestroy_v2, void *)(named[STREAM][a % MANY]);
    if (!strcmp(what, "pool-free"))
        return CALL(cuMemFreeAsync, pointer, void *)(a, s);
    if (!strcmp(what, "pool-free-ptsz"))
        return CALL(cuMemFreeAsync_ptsz, pointer, void *)(a, s);
    if (!strcmp(what, "pool-new"))
        return make_pool(a, 1, 1, (int)b);
    if (!strcmp(what, "pool-new-at"))
        return make_pool(a, (int)c, (int)b, (int)e);
    if (!strcmp(what, "pool-trim"))
        return CALL(cuMemPoolTrimTo, void *, size_t)(pool_of(a), b);
    if (!strcmp(what, "pool-end"))
        return CALL(cuMemPoolDestroy, void *)(pool_of(a));
    if (!strcmp(what, "pool-threshold"))
        return threshold(a, b);
    if (!strcmp(what, "pool-set"))
        return CALL(cuDeviceSetMemPool, int, void *)((int)b, pool_of(a));
    if (!strcmp(what, "pool-import"))
        return import_pool(a, b);
    if (!strncmp(what, "pool-place", 10))
        return by_place(what, a, (int)b, (int)c);
    return -1;
}

void pool_command(const char *what, unsigned long a, unsigned long b, unsigned c, unsigned e)
{
    if (!strncmp(what, "pool-async", 10) || !strncmp(what, "pool-from", 9))
        allocate(what, a, b, c);
    else if (!strcmp(what, "pool-fill") || !strcmp(what, "pool-churn"))
        fill(a, b, what[5] == 'c');
    else if (!strcmp(what, "pool-threads"))
        threads(a, b, c, e);
    else if (!strncmp(what, "pool-sync", 9))
        printf("%d\n", synchronize(what, a));
    else if (!strcmp(what, "pool-attribute"))
        attribute(a, (int)b);
    else
        printf("%d\n", simple(what, a, b, c, e));
}
