/* Ways to take memory of the card, each until it is refused: `escape <way> [<file of an image>]`.
 *
 * Prints one line, "<result> <number of grants>", and holds what it got until its standard input
 * ends, so that somebody outside can ask the management library what the card gave. The result is
 * that of the call that was refused; 0: nothing was, and the way gave up by itself. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define MOST (16 * GIB) /* where a way gives up: four times the share */

typedef unsigned long long pointer;

static void *library;

#define CALL(name, ...) ((int (*)(__VA_ARGS__))symbol(#name))

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(3);
    }
    return found;
}

static void must(int result, const char *what)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s: error %d\n", what, result);
    exit(3);
}

struct answer {
    int result;
    unsigned long long grants;
};

/* Calls `once` until it fails, at most `most` times. */
static struct answer until_refused(int (*once)(void), unsigned long long most)
{
    struct answer answer = {0, 0};
    while (answer.grants < most && (answer.result = once()) == 0)
        answer.grants++;
    return answer;
}

struct properties { /* CUmemAllocationProp */
    int type, handles, location, device;
    void *windows;
    unsigned char flags[8];
};

struct pool_properties { /* CUmemPoolProps */
    int type, handles, location, device;
    void *windows;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
};

/* Made, mapped, and let go of: it lives on by its mapping. */
static int vmm(void)
{
    struct properties wanted = {1, 0, 1, 0, NULL, {0}};
    unsigned long long handle = 0, size = 512 * MIB;
    pointer at = 0;
    int result = CALL(cuMemCreate, unsigned long long *, size_t, const void *,
                      unsigned long long)(&handle, size, &wanted, 0);
    if (result)
        return result;
    must(CALL(cuMemAddressReserve, pointer *, size_t, size_t, pointer,
              unsigned long long)(&at, size, 0, 0, 0),
         "cuMemAddressReserve");
    must(CALL(cuMemMap, pointer, size_t, size_t, unsigned long long,
              unsigned long long)(at, size, 0, handle, 0),
         "cuMemMap");
    must(CALL(cuMemRelease, unsigned long long)(handle), "cuMemRelease");
    return 0;
}

static int own_pool_of(size_t bytes)
{
    struct pool_properties wanted = {.type = 1, .location = 1};
    void *pool = NULL;
    pointer at = 0;
    must(CALL(cuMemPoolCreate, void **, const void *)(&pool, &wanted), "cuMemPoolCreate");
    int result = CALL(cuMemAllocFromPoolAsync, pointer *, size_t, void *, void *)(&at, bytes, pool,
                                                                                 NULL);
    if (result == 0)
        result = CALL(cuStreamSynchronize, void *)(NULL);
    return result;
}

static int own_pool(void)
{
    return own_pool_of(4 * GIB);
}

static int small_own_pools(void)
{
    return own_pool_of(4);
}

static int async(size_t bytes)
{
    pointer at = 0;
    return CALL(cuMemAllocAsync, pointer *, size_t, void *)(&at, bytes, NULL);
}

static int async_small(void)
{
    return async(4 * MIB / 3);
}

/* All back to the pool, which keeps it (a release threshold without end), then linear memory. */
static int pool_keeps(void)
{
    static int first = 1;
    void *pool = NULL;
    unsigned long long threshold = ~0ull;
    pointer at = 0;
    if (first) {
        must(CALL(cuDeviceGetDefaultMemPool, void **, int)(&pool, 0), "cuDeviceGetDefaultMemPool");
        must(CALL(cuMemPoolSetAttribute, void *, int, void *)(pool, 4, &threshold), "threshold");
        must(CALL(cuMemAllocAsync, pointer *, size_t, void *)(&at, 3 * GIB, NULL), "3 GiB");
        must(CALL(cuMemFreeAsync, pointer, void *)(at, NULL), "cuMemFreeAsync");
        must(CALL(cuStreamSynchronize, void *)(NULL), "cuStreamSynchronize");
        first = 0;
    }
    return CALL(cuMemAlloc_v2, pointer *, size_t)(&at, 256 * MIB);
}

struct array3d { /* CUDA_ARRAY3D_DESCRIPTOR */
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

static int array(size_t depth)
{
    struct array3d wanted = {2048, 2048, depth, 0x20, 4, 0}; /* 4 floats */
    void *handle = NULL;
    return CALL(cuArray3DCreate_v2, void **, const void *)(&handle, &wanted);
}

static int big_array(void)
{
    return array(512); /* 32 GiB */
}

static int arrays(void)
{
    return array(4); /* 256 MiB */
}

static int mipmaps(void)
{
    struct array3d wanted = {4096, 4096, 0, 0x20, 4, 0};
    void *handle = NULL;
    return CALL(cuMipmappedArrayCreate, void **, const void *, unsigned)(&handle, &wanted, 8);
}

/* Rows of 4 bytes: what is asked for is 4 MiB, what is taken is 512. */
static int pitch(void)
{
    pointer at = 0;
    size_t given = 0;
    return CALL(cuMemAllocPitch_v2, pointer *, size_t *, size_t, size_t, unsigned)(&at, &given, 4,
                                                                                   1 << 20, 4);
}

static int linear(void)
{
    pointer at = 0;
    return CALL(cuMemAlloc_v2, pointer *, size_t)(&at, 64 * MIB);
}

static int tiny(void)
{
    pointer at = 0;
    return CALL(cuMemAlloc_v2, pointer *, size_t)(&at, MIB - 1);
}

/* Retained twice and let go of once: it lives, and so does what it costs. */
static int retained(void)
{
    static int first = 1;
    void *context = NULL;
    if (first) {
        must(CALL(cuDevicePrimaryCtxRetain, void **, int)(&context, 0), "retain");
        must(CALL(cuDevicePrimaryCtxRelease_v2, int)(0), "release");
        first = 0;
    }
    return linear();
}

static int contexts(void)
{
    void *context = NULL;
    return CALL(cuCtxCreate_v2, void **, unsigned, int)(&context, 0, 0);
}

#define PTX_HEAD ".version 6.3\n.target sm_70\n.address_size 64\n"

static int module_of(const char *text)
{
    void *module = NULL;
    return CALL(cuModuleLoadData, void **, const void *)(&module, text);
}

/* A variable of 256 MiB in a module. */
static const char *image = PTX_HEAD ".visible .global .align 16 .b8 big[268435456];\n"
                                    ".visible .entry nothing() { ret; }\n";

static int modules(void)
{
    return module_of(image);
}

static int libraries(void)
{
    void *library_handle = NULL, *kernel = NULL, *function = NULL;
    int result = CALL(cuLibraryLoadData, void **, const void *, void *, void *, unsigned, void *,
                      void *, unsigned)(&library_handle, image, NULL, NULL, 0, NULL, NULL, 0);
    if (result)
        return result;
    must(CALL(cuLibraryGetKernel, void **, void *, const char *)(&kernel, library_handle,
                                                                 "nothing"),
         "cuLibraryGetKernel");
    return CALL(cuKernelGetFunction, void **, void *)(&function, kernel);
}

/* The heap of malloc() in kernels: taken by the first launch of a kernel that may call it. */
static int heap(void)
{
    static const char text[] = PTX_HEAD
        ".extern .func (.param .b64 given) malloc (.param .b64 bytes);\n"
        ".visible .entry takes() { .reg .b64 %r<2>; mov.u64 %r1, 1024;\n"
        "{ .param .b64 a; .param .b64 b; st.param.b64 [a], %r1; call.uni (b), malloc, (a); }\n"
        "ret; }\n";
    void *context = NULL, *module = NULL, *function = NULL;
    int result = CALL(cuCtxCreate_v2, void **, unsigned, int)(&context, 0, 0);
    if (result == 0)
        result = CALL(cuCtxSetLimit, int, size_t)(2, 512 * MIB);
    if (result == 0)
        result = CALL(cuModuleLoadData, void **, const void *)(&module, text);
    if (result)
        return result;
    must(CALL(cuModuleGetFunction, void **, void *, const char *)(&function, module, "takes"),
         "function");
    result = CALL(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, unsigned, void *, void **, void **)(function, 1, 1, 1, 1, 1, 1, 0, NULL,
                                                                NULL, NULL);
    return result ? result : CALL(cuCtxSynchronize, void)();
}

/* Local memory for every thread the card can have, more each time, and a launch that needs it. */
static int stack(void)
{
    static size_t bytes = 4096;
    static void *function;
    if (!function) {
        void *module = NULL;
        must(CALL(cuModuleLoadData, void **, const void *)(
                 &module, PTX_HEAD ".visible .entry nothing() { ret; }\n"),
             "module");
        must(CALL(cuModuleGetFunction, void **, void *, const char *)(&function, module,
                                                                      "nothing"),
             "function");
    }
    int result = CALL(cuCtxSetLimit, int, size_t)(0, bytes);
    if (result == 0)
        result = CALL(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned,
                      unsigned, unsigned, void *, void **, void **)(function, 1, 1, 1, 1, 1, 1, 0,
                                                                    NULL, NULL, NULL);
    if (result == 0)
        result = CALL(cuCtxSynchronize, void)();
    bytes += 4096;
    return result;
}

struct node_properties { /* CUDA_MEM_ALLOC_NODE_PARAMS */
    struct pool_properties pool;
    const void *access;
    size_t access_count, bytes;
    pointer at;
};

/* A graph whose node takes 512 MiB when it is launched, and keeps it. */
static int graphs(void)
{
    struct node_properties wanted = {.pool = {.type = 1, .location = 1}, .bytes = 512 * MIB};
    void *graph = NULL, *node = NULL, *ready = NULL;
    must(CALL(cuGraphCreate, void **, unsigned)(&graph, 0), "cuGraphCreate");
    int result = CALL(cuGraphAddMemAllocNode, void **, void *, const void *, size_t,
                      void *)(&node, graph, NULL, 0, &wanted);
    if (result == 0)
        result = CALL(cuGraphInstantiateWithFlags, void **, void *, unsigned long long)(&ready,
                                                                                       graph, 0);
    if (result == 0)
        result = CALL(cuGraphLaunch, void *, void *)(ready, NULL);
    if (result == 0)
        result = CALL(cuStreamSynchronize, void *)(NULL);
    return result;
}

static const struct {
    const char *name;
    int (*once)(void);
    unsigned long long most;
} ways[] = {
    {"linear", linear, MOST / (64 * MIB)},
    {"tiny", tiny, MOST / MIB},
    {"pitch", pitch, MOST / (512 * MIB)},
    {"vmm", vmm, MOST / (512 * MIB)},
    {"own-pool", own_pool, 4},
    {"small-own-pools", small_own_pools, MOST / (32 * MIB)},
    {"async-small", async_small, MOST / MIB},
    {"pool-keeps", pool_keeps, MOST / (256 * MIB)},
    {"big-array", big_array, 1},
    {"arrays", arrays, MOST / (256 * MIB)},
    {"mipmaps", mipmaps, MOST / (256 * MIB)},
    {"retained", retained, MOST / (64 * MIB)},
    {"contexts", contexts, 64},
    {"modules", modules, MOST / (256 * MIB)},
    {"libraries", libraries, MOST / (256 * MIB)},
    {"heap", heap, MOST / GIB},
    {"stack", stack, 16},
    {"graphs", graphs, MOST / (512 * MIB)},
};

static const char *read_image(const char *path)
{
    static char bytes[1 << 16];
    FILE *file = fopen(path, "rb");
    must(!file || fread(bytes, 1, sizeof bytes, file) == 0, path);
    (void)fclose(file);
    return bytes;
}

int main(int argc, char **argv)
{
    void *context = NULL;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (argc < 2 || argc > 3 || !library) {
        fprintf(stderr, "usage: escape <way> [<file of an image>], with a libcuda.so.1\n");
        return 2;
    }
    if (argc == 3)
        image = read_image(argv[2]);
    must(CALL(cuInit, unsigned)(0), "cuInit");
    must(CALL(cuDevicePrimaryCtxRetain, void **, int)(&context, 0), "a context");
    must(CALL(cuCtxSetCurrent, void *)(context), "cuCtxSetCurrent");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].name, argv[1]) != 0)
            continue;
        struct answer answer = until_refused(ways[i].once, ways[i].most);
        printf("%d %llu\n", answer.result, answer.grants);
        fflush(stdout);
        (void)getchar();
        return 0;
    }
    fprintf(stderr, "no such way: %s\n", argv[1]);
    return 2;
}
