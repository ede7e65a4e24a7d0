/* A program on the GPU that obeys line by line and answers with a line of numbers:
 *   start               initialises the driver and makes a context; the two results
 *   processors          multiprocessors that it may use
 *   run <seconds>       launches kernels of the same work; how many, nanoseconds, the last result
 *   loops <count>       the kernels' work from now on; the count
 *   latency <count>     launches one at a time; nanoseconds of the 50th and the 99th percentile
 *   alloc <MiB>         the result
 *   fault               writes to an address that is none; the result */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char code[] =
    ".version 6.4\n.target sm_70\n.address_size 64\n"
    ".visible .entry work(.param .u32 loops, .param .u64 out)\n{\n"
    " .reg .b32 %r<3>;\n .reg .f32 %f<3>;\n .reg .pred %p;\n .reg .b64 %rd<2>;\n"
    " ld.param.u32 %r1, [loops];\n ld.param.u64 %rd1, [out];\n mov.u32 %r2, 0;\n"
    " mov.f32 %f1, 0f3F800000;\n mov.f32 %f2, 0f3F800001;\n"
    "again:\n fma.rn.f32 %f1, %f1, %f2, %f2;\n add.u32 %r2, %r2, 1;\n"
    " setp.lt.u32 %p, %r2, %r1;\n @%p bra again;\n"
    " setp.eq.f32 %p, %f1, 0f00000000;\n @%p st.global.f32 [%rd1], %f1;\n ret;\n}\n"
    ".visible .entry bad(.param .u64 out)\n{\n .reg .b32 %r<2>;\n .reg .b64 %rd<2>;\n"
    " ld.param.u64 %rd1, [out];\n mov.u32 %r1, 1;\n st.global.u32 [%rd1], %r1;\n ret;\n}\n";

/* Several waves on any GPU, so that its length goes with the processors that it gets. */
enum { BLOCKS = 8448, THREADS = 256, BATCH = 4, MOST = 100000 };

static void *library, *work, *bad;
static uint64_t out;
static unsigned loops = 4000;

static void find(const char *name, void *to)
{
    void *found = dlsym(library, name);
    memcpy(to, &found, sizeof found);
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int start(int *context)
{
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
    int (*load)(void **, const void *), (*function)(void **, void *, const char *);
    int (*alloc)(uint64_t *, size_t);
    void *made = NULL, *module = NULL;
    find("cuInit", &init), find("cuDevicePrimaryCtxRetain", &retain);
    find("cuCtxSetCurrent", &set), find("cuModuleLoadData", &load);
    find("cuModuleGetFunction", &function), find("cuMemAlloc_v2", &alloc);
    int result = init(0);
    *context = result ? result : retain(&made, 0);
    if (*context || set(made) || load(&module, code) || alloc(&out, 4096))
        return result;
    function(&work, module, "work");
    function(&bad, module, "bad");
    return result;
}

static int launch(void *kernel, unsigned blocks, void **arguments)
{
    static int (*real)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       void *, void **, void **);
    if (!real)
        find("cuLaunchKernel", &real);
    return real(kernel, blocks, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL);
}

static int synchronize(void)
{
    static int (*real)(void);
    if (!real)
        find("cuCtxSynchronize", &real);
    return real();
}

static int batch(int count)
{
    void *arguments[] = {&loops, &out};
    int result = 0;
    for (int i = 0; i < count && !result; i++)
        result = launch(work, BLOCKS, arguments);
    int waited = synchronize();
    return result ? result : waited;
}

static void run(double seconds)
{
    int result = batch(BATCH);
    int64_t began = now(), count = 0;
    while (!result && now() - began < (int64_t)(seconds * 1e9)) {
        result = batch(BATCH);
        count += BATCH;
    }
    printf("%ld %ld %d\n", (long)count, (long)(now() - began), result);
}

static int by_value(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static void latency(int count)
{
    static int64_t taken[MOST];
    int n = count < MOST ? count : MOST;
    for (int i = 0; i < n; i++) {
        int64_t began = now();
        batch(1);
        taken[i] = now() - began;
    }
    qsort(taken, (size_t)n, sizeof *taken, by_value);
    printf("%ld %ld\n", (long)taken[n / 2], (long)taken[n * 99 / 100]);
}

static int fault(void)
{
    uint64_t nowhere = 16;
    void *arguments[] = {&nowhere};
    int result = launch(bad, 1, arguments);
    return result ? result : synchronize();
}

static int processors(void)
{
    int (*attribute)(int *, int, int), value = 0;
    find("cuDeviceGetAttribute", &attribute);
    attribute(&value, 16, 0);
    return value;
}

static int take(long mib)
{
    int (*alloc)(uint64_t *, size_t);
    uint64_t pointer;
    find("cuMemAlloc_v2", &alloc);
    return alloc(&pointer, (size_t)mib << 20);
}

int main(void)
{
    char line[64], word[32];
    double number;
    int context;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return 1;
    while (fgets(line, sizeof line, stdin)) {
        number = 0;
        if (sscanf(line, "%31s %lf", word, &number) < 1)
            continue;
        if (!strcmp(word, "start")) {
            int result = start(&context);
            printf("%d %d\n", result, context);
        } else if (!strcmp(word, "processors")) {
            printf("%d\n", processors());
        } else if (!strcmp(word, "run")) {
            run(number);
        } else if (!strcmp(word, "loops")) {
            loops = (unsigned)number;
            printf("%u\n", loops);
        } else if (!strcmp(word, "latency")) {
            latency((int)number);
        } else if (!strcmp(word, "alloc")) {
            printf("%d\n", take((long)number));
        } else if (!strcmp(word, "fault")) {
            printf("%d\n", fault());
        }
        fflush(stdout);
    }
    return 0;
}
