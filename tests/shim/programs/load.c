/* A load for a GPU, real or simulated: kernels of a given length, in batches, plain or as graphs.
 * It obeys line by line and answers with a line:
 *   start <device>                  makes its primary context one of those used; the result
 *   unit <x>                        1000 loops of the kernel take x ns; 0: measure; answers x
 *   run <kernel ns> <batch> <how> <threads> <until>
 *                                   each thread has a stream and works until that time. Answers
 *                                   "<context> <count> <time>" for each step, then "end"
 *   latency <kernel ns> <wait ns> <until>
 *                                   one kernel at a time, after a random wait of up to twice that.
 *                                   Answers each one's nanoseconds, then "end"
 *   queue <kernel ns> <count> <how> launches that many and waits for none; the result
 *   timed <kernel ns> <count>       launches that many between two events; ns between those
 *   query, sync, copy               asks for all work, waits for it, copies from the GPU: result
 * Times are CLOCK_MONOTONIC in ns. How: plain, graph, ex, cooperative, legacy (launch), same
 * (plain, by one function whatever the length), streams (plain, each thread in four in turn). */
#define _GNU_SOURCE
#include "load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A fixed number of loops, not a fixed time on a clock: a clock goes on while another process has
 * the GPU. Nothing is ever written, which the compiler cannot know. */
static const char kernel[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry spin(.param .u64 loops, .param .u64 out)\n{\n"
    " .reg .pred %p<3>;\n .reg .f32 %f<2>;\n .reg .b32 %r<4>;\n .reg .b64 %rd<3>;\n"
    " ld.param.u64 %rd1, [loops];\n ld.param.u64 %rd2, [out];\n cvt.u32.u64 %r1, %rd1;\n"
    " mov.u32 %r3, %tid.x;\n cvt.rn.f32.u32 %f1, %r3;\n mov.u32 %r2, 0;\n"
    "again:\n setp.ge.u32 %p1, %r2, %r1;\n @%p1 bra done;\n"
    " fma.rn.f32 %f1, %f1, 0f3F800347, 0f3F000000;\n add.u32 %r2, %r2, 1;\n bra again;\n"
    "done:\n setp.eq.u64 %p2, %rd2, 0;\n @%p2 bra out_;\n st.global.f32 [%rd2], %f1;\n"
    "out_:\n ret;\n}\n";

enum { MULTIPROCESSORS = 16, BLOCKS_EACH = 16, THREADS = 256, CALIBRATE = 1000000 };

struct cuda cu;
struct context contexts[LOAD_CONTEXTS];
unsigned context_count;
static double unit;

uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void check(int result, const char *what)
{
    if (result == 0)
        return;
    printf("%s: error %d\n", what, result);
    fflush(stdout);
    exit(1);
}

static void look_up(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    memcpy(to, &found, sizeof found);
}

static void open_driver(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        exit(99);
    }
#define FIND(field, symbol) look_up(library, symbol, &cu.field)
    FIND(init, "cuInit");
    FIND(attribute, "cuDeviceGetAttribute");
    FIND(retain, "cuDevicePrimaryCtxRetain");
    FIND(set, "cuCtxSetCurrent");
    FIND(load, "cuModuleLoadData");
    FIND(function, "cuModuleGetFunction");
    FIND(synchronize, "cuCtxSynchronize");
    FIND(alloc, "cuMemAlloc_v2");
    FIND(copy, "cuMemcpyDtoH_v2");
    FIND(stream_query, "cuStreamQuery");
    FIND(stream_create, "cuStreamCreate");
    FIND(stream_destroy, "cuStreamDestroy_v2");
    FIND(stream_synchronize, "cuStreamSynchronize");
    FIND(event_create, "cuEventCreate");
    FIND(event_destroy, "cuEventDestroy_v2");
    FIND(event_record, "cuEventRecord");
    FIND(event_query, "cuEventQuery");
    FIND(event_synchronize, "cuEventSynchronize");
    FIND(elapsed, "cuEventElapsedTime");
    FIND(launch, "cuLaunchKernel");
    FIND(launch_ex, "cuLaunchKernelEx");
    FIND(launch_cooperative, "cuLaunchCooperativeKernel");
    FIND(block_shape, "cuFuncSetBlockShape");
    FIND(parameter, "cuParamSetv");
    FIND(parameter_size, "cuParamSetSize");
    FIND(launch_grid, "cuLaunchGridAsync");
    FIND(capture, "cuStreamBeginCapture_v2");
    FIND(capture_end, "cuStreamEndCapture");
    FIND(instantiate, "cuGraphInstantiateWithFlags");
    FIND(exec_destroy, "cuGraphExecDestroy");
    FIND(graph_destroy, "cuGraphDestroy");
    FIND(launch_graph, "cuGraphLaunch");
#undef FIND
}

static int start(int device)
{
    struct context *c = &contexts[context_count];
    int multiprocessors, result = cu.init(0);
    if (result || (result = cu.retain(&c->context, device)) || (result = cu.set(c->context)))
        return result;
    check(cu.attribute(&multiprocessors, MULTIPROCESSORS, device), "cuDeviceGetAttribute");
    c->blocks = (unsigned)multiprocessors * BLOCKS_EACH;
    context_count++;
    return 0;
}

void *spin_of(struct context *c, uint64_t length)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    void *spin = NULL, *module;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < c->kernel_count; i++)
        if (c->kernels[i].length == length)
            spin = c->kernels[i].spin;
    if (!spin) {
        check(c->kernel_count == LOAD_KERNELS, "too many lengths");
        check(cu.load(&module, kernel), "cuModuleLoadData");
        check(cu.function(&spin, module, "spin"), "cuModuleGetFunction");
        c->kernels[c->kernel_count++] = (struct kernel){length, spin};
    }
    pthread_mutex_unlock(&lock);
    return spin;
}

/* Prepared for what a kernel of `length` nanoseconds needs. */
void launch_one(struct context *c, uint64_t length, enum how how, void *stream)
{
    uint64_t loops = unit > 0 ? (uint64_t)((double)length * 1000 / unit) : length, out = 0;
    void *parameters[] = {&loops, &out}, *spin = spin_of(c, how == SAME ? 0 : length);
    struct config config = {c->blocks, 1, 1, THREADS, 1, 1, 0, stream, NULL, 0};
    int result = 0;
    if (how == EX) {
        result = cu.launch_ex(&config, spin, parameters, NULL);
    } else if (how == COOPERATIVE) {
        /* All blocks must have room at once. */
        result = cu.launch_cooperative(spin, c->blocks / BLOCKS_EACH * 4, 1, 1, THREADS, 1, 1, 0,
                                       stream, parameters);
    } else if (how == LEGACY) {
        check(cu.block_shape(spin, THREADS, 1, 1), "cuFuncSetBlockShape");
        check(cu.parameter(spin, 0, &loops, sizeof loops), "cuParamSetv");
        check(cu.parameter(spin, sizeof loops, &out, sizeof out), "cuParamSetv");
        check(cu.parameter_size(spin, sizeof loops + sizeof out), "cuParamSetSize");
        result = cu.launch_grid(spin, (int)c->blocks, 1, stream);
    } else {
        result = cu.launch(spin, c->blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL);
    }
    check(result, "launch");
}

static int queue(uint64_t length, uint64_t count, enum how how)
{
    check(cu.set(contexts[0].context), "cuCtxSetCurrent");
    while (count--)
        launch_one(&contexts[0], length, how, NULL);
    return 0;
}

static double timed(uint64_t length, uint64_t count)
{
    void *before, *after;
    float took;
    check(cu.event_create(&before, 0), "cuEventCreate");
    check(cu.event_create(&after, 0), "cuEventCreate");
    check(cu.event_record(before, NULL), "cuEventRecord");
    queue(length, count, PLAIN);
    check(cu.event_record(after, NULL), "cuEventRecord");
    check(cu.event_synchronize(after), "cuEventSynchronize");
    check(cu.elapsed(&took, before, after), "cuEventElapsedTime");
    check(cu.event_destroy(before), "cuEventDestroy");
    check(cu.event_destroy(after), "cuEventDestroy");
    return (double)took * 1e6;
}

/* How long 1000 loops take, by the GPU's own clock; the middle of five, after it has warmed up. */
static double measure(void)
{
    double took[5];
    unit = 1000;
    for (uint64_t end = now() + 300000000; now() < end;)
        timed(CALIBRATE, 1);
    for (unsigned i = 0; i < 5; i++) {
        took[i] = timed(CALIBRATE, 1);
        for (unsigned j = i; j > 0 && took[j] < took[j - 1]; j--) {
            double other = took[j];
            took[j] = took[j - 1];
            took[j - 1] = other;
        }
    }
    return took[2] / (CALIBRATE / 1000);
}

static int copy(void)
{
    static unsigned long long address;
    char bytes[16];
    if (!address)
        check(cu.alloc(&address, sizeof bytes), "cuMemAlloc");
    return cu.copy(bytes, address, sizeof bytes);
}

static enum how how_of(const char *name)
{
    static const char *const names[] = {"plain", "graph", "ex", "cooperative", "legacy", "same",
                                        "streams"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return (enum how)i;
    check(1, name);
    return PLAIN;
}

static void latency(uint64_t length, uint64_t wait, uint64_t until)
{
    unsigned seed = (unsigned)getpid();
    check(cu.set(contexts[0].context), "cuCtxSetCurrent");
    while (now() < until) {
        uint64_t pause = wait ? (uint64_t)rand_r(&seed) % (2 * wait) : 0;
        struct timespec t = {(time_t)(pause / 1000000000), (long)(pause % 1000000000)};
        nanosleep(&t, NULL);
        uint64_t began = now();
        launch_one(&contexts[0], length, PLAIN, NULL);
        check(cu.synchronize(), "cuCtxSynchronize");
        printf("%lu\n", (unsigned long)(now() - began));
    }
    printf("end\n");
}

static void obey(const char *line)
{
    unsigned long a = 0, b = 0, c = 0, d = 0;
    double value;
    char how[16];
    if (sscanf(line, "start %lu", &a) == 1) {
        printf("%d\n", start((int)a));
    } else if (sscanf(line, "unit %lf", &value) == 1) {
        unit = value > 0 ? value : measure();
        printf("%.4f\n", unit);
    } else if (sscanf(line, "run %lu %lu %15s %lu %lu", &a, &b, how, &c, &d) == 5) {
        run(a, b, how_of(how), (unsigned)c, d);
    } else if (sscanf(line, "latency %lu %lu %lu", &a, &b, &c) == 3) {
        latency(a, b, c);
    } else if (sscanf(line, "queue %lu %lu %15s", &a, &b, how) == 3) {
        printf("%d\n", queue(a, b, how_of(how)));
    } else if (sscanf(line, "timed %lu %lu", &a, &b) == 2) {
        printf("%.0f\n", timed(a, b));
    } else if (!strcmp(line, "query\n")) {
        printf("%d\n", cu.stream_query(NULL));
    } else if (!strcmp(line, "sync\n")) {
        printf("%d\n", cu.synchronize());
    } else if (!strcmp(line, "copy\n")) {
        printf("%d\n", copy());
    } else {
        check(1, line);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char line[256];
    open_driver(argc > 1 ? argv[1] : "libcuda.so.1");
    while (fgets(line, sizeof line, stdin))
        obey(line);
    return 0;
}
