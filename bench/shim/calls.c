/* Times one call of the driver, by itself and through the front, in rounds that take turns.
 *   calls <native|front|both> <call> <bytes> <live> <rounds> <calls in a round>
 * Prints a line for each round: nanoseconds for one call, natively and through the front (for one
 * side alone: that side's). <live> allocations are made first, on each side, and stay. Both sides
 * are the same driver in the same process: the front's DT_NEEDED is what is opened natively. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DRIVER "/run/apportion/driver/libcuda.so.1"
#define LAUNCHES 512 /* in a row: a real card's queue holds more */

struct side {
    int (*alloc)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*alloc_async)(uint64_t *, size_t, void *);
    int (*free_async)(uint64_t, void *);
    int (*info)(size_t *, size_t *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **);
    int (*synchronize)(void);
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*set)(void *);
    int (*load)(void **, const void *);
    int (*function)(void **, void *, const char *);
};

static const char kernel[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                             ".visible .entry nothing()\n{\n ret;\n}\n";
static void *nothing;
static size_t bytes;

static void check(int result, const char *what)
{
    if (result == 0)
        return;
    printf("%s: error %d\n", what, result);
    exit(1);
}

static void look_up(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    if (!found) {
        printf("%s is missing\n", name);
        exit(1);
    }
    memcpy(to, &found, sizeof found);
}

static void open_side(struct side *side, const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        exit(1);
    }
    look_up(library, "cuMemAlloc_v2", &side->alloc);
    look_up(library, "cuMemFree_v2", &side->free);
    look_up(library, "cuMemAllocAsync", &side->alloc_async);
    look_up(library, "cuMemFreeAsync", &side->free_async);
    look_up(library, "cuMemGetInfo_v2", &side->info);
    look_up(library, "cuLaunchKernel", &side->launch);
    look_up(library, "cuCtxSynchronize", &side->synchronize);
    look_up(library, "cuInit", &side->init);
    look_up(library, "cuDevicePrimaryCtxRetain", &side->retain);
    look_up(library, "cuCtxSetCurrent", &side->set);
    look_up(library, "cuModuleLoadData", &side->load);
    look_up(library, "cuModuleGetFunction", &side->function);
}

static void start(const struct side *side)
{
    void *context, *module;
    check(side->init(0), "cuInit");
    check(side->retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(side->set(context), "cuCtxSetCurrent");
    check(side->load(&module, kernel), "cuModuleLoadData");
    check(side->function(&nothing, module, "nothing"), "cuModuleGetFunction");
}

static void alloc_free(const struct side *side, unsigned long calls)
{
    uint64_t pointer;
    while (calls--) {
        check(side->alloc(&pointer, bytes), "cuMemAlloc_v2");
        check(side->free(pointer), "cuMemFree_v2");
    }
}

static void alloc_free_async(const struct side *side, unsigned long calls)
{
    uint64_t pointer;
    while (calls--) {
        check(side->alloc_async(&pointer, bytes, NULL), "cuMemAllocAsync");
        check(side->free_async(pointer, NULL), "cuMemFreeAsync");
    }
}

static void info(const struct side *side, unsigned long calls)
{
    size_t available, total;
    while (calls--)
        check(side->info(&available, &total), "cuMemGetInfo_v2");
}

static void launch(const struct side *side, unsigned long calls)
{
    while (calls--) {
        check(side->launch(nothing, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
        if (calls % LAUNCHES == 0)
            check(side->synchronize(), "cuCtxSynchronize");
    }
}

static void keep(const struct side *side, unsigned long live)
{
    uint64_t pointer;
    while (live--)
        check(side->alloc(&pointer, bytes), "cuMemAlloc_v2");
}

static double timed(void (*call)(const struct side *, unsigned long), const struct side *side,
                    unsigned long calls)
{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    call(side, calls);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
           (double)calls;
}

static void (*by_name(const char *name))(const struct side *, unsigned long)
{
    if (!strcmp(name, "alloc"))
        return alloc_free;
    if (!strcmp(name, "async"))
        return alloc_free_async;
    return !strcmp(name, "info") ? info : launch;
}

int main(int argc, char **argv)
{
    struct side sides[2];
    if (argc != 7)
        return 2;
    /* The front first: both have the same SONAME, and the first one loaded answers to it. */
    bool front = strcmp(argv[1], "native") != 0, native = strcmp(argv[1], "front") != 0;
    if (front)
        open_side(&sides[native], "libcuda.so.1");
    if (native)
        open_side(&sides[0], DRIVER);
    unsigned count = front + native;
    bytes = strtoul(argv[3], NULL, 10);
    unsigned long live = strtoul(argv[4], NULL, 10);
    unsigned long rounds = strtoul(argv[5], NULL, 10), calls = strtoul(argv[6], NULL, 10);
    for (unsigned i = 0; i < count; i++) {
        start(&sides[i]);
        keep(&sides[i], live);
    }
    for (unsigned long round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < count; i++)
            printf("%.1f ", timed(by_name(argv[2]), &sides[i], calls));
        printf("\n");
    }
    return 0;
}
