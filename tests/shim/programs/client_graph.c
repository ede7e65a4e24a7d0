/* The application's commands for graphs; see client_pool.c. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "client_pool.h"
#include "driver.h"

#define SENTINEL 0xdeadbeefULL

struct alloc_node {
    int type, handle_types, location_type, location;
    unsigned char other[72];
    const void *access;
    size_t access_count, bytes;
    pointer address;
};

struct any_node {
    int type, reserved[3];
    struct alloc_node alloc;
    char space[112];
    long long end;
};

_Static_assert(sizeof(struct any_node) == 256, "as in the driver");

/* form: 0 cuGraphAddMemAllocNode, 1 and 2 the versions of cuGraphAddNode. */
static void add_alloc(unsigned long graph, size_t bytes, unsigned form)
{
    void *node = NULL, *to = named[GRAPH][graph % MANY];
    struct any_node any = {
        .type = 10, .alloc = {.type = 1, .location_type = 1, .bytes = bytes, .address = SENTINEL}};
    int result;
    if (form == 0)
        result = CALL(cuGraphAddMemAllocNode, void **, void *, void *, size_t, void *)(
            &node, to, NULL, 0, &any.alloc);
    else if (form == 1)
        result = CALL(cuGraphAddNode, void **, void *, void *, size_t, void *)(&node, to, NULL, 0,
                                                                               &any);
    else
        result = CALL(cuGraphAddNode_v2, void **, void *, void *, void *, size_t, void *)(
            &node, to, NULL, NULL, 0, &any);
    printf("%d %llu\n", result, any.alloc.address);
}

/* form: 0 to 4, in the order below; the executable graph has its graph's number. */
static int instantiate(unsigned long number, unsigned long form, unsigned flags)
{
    void **exec = &named[EXEC][number % MANY], *graph = named[GRAPH][number % MANY];
    struct {
        uint64_t flags;
        void *stream, *node;
        int result;
    } parameters = {.flags = flags};
    switch (form) {
    case 0:
        return CALL(cuGraphInstantiate, void **, void *, void *, char *, size_t)(exec, graph, NULL,
                                                                                 NULL, 0);
    case 1:
        return CALL(cuGraphInstantiate_v2, void **, void *, void *, char *, size_t)(
            exec, graph, NULL, NULL, 0);
    case 2:
        return CALL(cuGraphInstantiateWithFlags, void **, void *, unsigned long long)(exec, graph,
                                                                                      flags);
    case 3:
        return CALL(cuGraphInstantiateWithParams, void **, void *, void *)(exec, graph,
                                                                           &parameters);
    default:
        return CALL(cuGraphInstantiateWithParams_ptsz, void **, void *, void *)(exec, graph,
                                                                                &parameters);
    }
}

static int run(const char *what, unsigned long number, unsigned long stream)
{
    void *exec = named[EXEC][number % MANY], *s = named[STREAM][stream % MANY];
    if (!strcmp(what, "graph-launch"))
        return CALL(cuGraphLaunch, void *, void *)(exec, s);
    if (!strcmp(what, "graph-launch-ptsz"))
        return CALL(cuGraphLaunch_ptsz, void *, void *)(exec, s);
    if (!strcmp(what, "graph-upload"))
        return CALL(cuGraphUpload, void *, void *)(exec, s);
    return CALL(cuGraphUpload_ptsz, void *, void *)(exec, s);
}

static int begin(unsigned long stream, int mode, unsigned form)
{
    void *s = named[STREAM][stream % MANY];
    if (form == 1)
        return CALL(cuStreamBeginCapture_v2_ptsz, void *, int)(s, mode);
    if (form == 2)
        return CALL(cuStreamBeginCapture, void *)(s);
    return CALL(cuStreamBeginCapture_v2, void *, int)(s, mode);
}

/* Captures allocation, filling, copying and release of `bytes`, and does that `times` times: the
 * first error, and how often the host got what was filled in. */
static void replay(unsigned long number, size_t bytes, unsigned times)
{
    void *s = named[STREAM][1];
    pointer p = SENTINEL;
    unsigned seen = 0, right = 0;
    int result = begin(1, 0, 0);
    if (!result)
        result = CALL(cuMemAllocAsync, pointer *, size_t, void *)(&p, bytes, s);
    if (!result)
        result = CALL(cuMemsetD32Async, pointer, unsigned, size_t, void *)(p, 4711, bytes / 4, s);
    if (!result)
        result = CALL(cuMemcpyDtoHAsync_v2, void *, pointer, size_t, void *)(&seen, p, 4, s);
    if (!result)
        result = CALL(cuMemFreeAsync, pointer, void *)(p, s);
    if (!result)
        result = CALL(cuStreamEndCapture, void *, void **)(s, &named[GRAPH][number % MANY]);
    if (!result)
        result = instantiate(number, 2, 0);
    for (unsigned i = 0; i < times && !result; i++) {
        seen = 0;
        result = run("graph-launch", number, 1);
        result = result ? result : CALL(cuStreamSynchronize, void *)(s);
        right += seen == 4711;
    }
    printf("%d %u\n", result, right);
}

/* A kernel that does nothing, in a stream. */
static int kernel(unsigned long stream)
{
    void *module = NULL, *function = NULL;
    int result = CALL(cuModuleLoadData, void **, const void *)(
        &module, ".version 6.4\n.visible .entry k()\n{ ret; }\n");
    if (!result)
        result = CALL(cuModuleGetFunction, void **, void *, const char *)(&function, module, "k");
    if (!result)
        result = CALL(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned,
                      unsigned, unsigned, void *, void **, void **)(
            function, 1, 1, 1, 1, 1, 1, 0, named[STREAM][stream % MANY], NULL, NULL);
    return result;
}

static void attribute(int which)
{
    uint64_t value = SENTINEL;
    int result = CALL(cuDeviceGetGraphMemAttribute, int, int, void *)(0, which, &value);
    printf("%d %llu\n", result, (unsigned long long)value);
}

static int simple(const char *what, unsigned long a, unsigned long b, unsigned c)
{
    void *node, *graph = named[GRAPH][a % MANY], *exec = named[EXEC][a % MANY];
    char text[64];
    if (!strcmp(what, "graph-new"))
        return CALL(cuGraphCreate, void **, unsigned)(&named[GRAPH][a % MANY], 0);
    if (!strcmp(what, "graph-free"))
        return CALL(cuGraphAddMemFreeNode, void **, void *, void *, size_t, pointer)(
            &node, graph, NULL, 0, b);
    if (!strcmp(what, "graph-exec"))
        return instantiate(a, b, c);
    if (!strcmp(what, "graph-update"))
        return CALL(cuGraphExecUpdate_v2, void *, void *, void *)(exec, named[GRAPH][b % MANY],
                                                                  text);
    if (!strcmp(what, "graph-kernel"))
        return kernel(a);
    if (!strcmp(what, "graph-end-exec"))
        return CALL(cuGraphExecDestroy, void *)(exec);
    if (!strcmp(what, "graph-trim"))
        return CALL(cuDeviceGraphMemTrim, int)((int)a);
    if (!strcmp(what, "graph-capture"))
        return begin(a, (int)b, c);
    if (!strcmp(what, "graph-captured"))
        return CALL(cuStreamEndCapture, void *, void **)(named[STREAM][a % MANY],
                                                         &named[GRAPH][b % MANY]);
    if (!strncmp(what, "graph-launch", 12) || !strncmp(what, "graph-upload", 12))
        return run(what, a, b);
    return -1;
}

void graph_command(const char *what, unsigned long a, unsigned long b, unsigned c, unsigned e)
{
    (void)e;
    if (!strcmp(what, "graph-alloc"))
        add_alloc(a, b, c);
    else if (!strcmp(what, "graph-replay"))
        replay(a, b, c);
    else if (!strcmp(what, "graph-attribute"))
        attribute((int)a);
    else
        printf("%d\n", simple(what, a, b, c));
}
