/* An application for the less common ways to take device memory: a command a line, answered by a
 * line of numbers of which the first is the driver's result. Objects are named by number. */
#define _GNU_SOURCE
#include "families.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;
static void *contexts[MANY];

void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        printf("no %s\n", name);
        exit(98);
    }
    return found;
}

static int start(int device)
{
    int result = CALL(cuInit, 0u);
    if (result == 0)
        result = CALL(cuDevicePrimaryCtxRetain, &contexts[0], device);
    return result ? result : CALL(cuCtxSetCurrent, contexts[0]);
}

/* What it holds by the driver's own account would take NVML; free and total are the share's. */
static void info(void)
{
    size_t available = 0, total = 0;
    int result = CALL(cuMemGetInfo_v2, &available, &total);
    printf("%d %zu %zu\n", result, available, total);
}

static void linear(const char *what, const struct words *w)
{
    static number pointers[MANY];
    number pointer = SENTINEL;
    unsigned place = (unsigned)w->n[0] % MANY;
    if (!strcmp(what, "alloc")) {
        int result = CALL(cuMemAlloc_v2, &pointer, (size_t)w->n[1]);
        if (result == 0)
            pointers[place] = pointer;
        printf("%d %llu\n", result, pointer);
    } else if (!strcmp(what, "free")) {
        printf("%d\n", CALL(cuMemFree_v2, pointers[place]));
    } else {
        printf("? %s\n", what);
    }
}

static void context(const char *what, const struct words *w)
{
    unsigned place = (unsigned)w->n[0] % MANY;
    if (!strcmp(what, "ctx-create"))
        printf("%d\n", CALL(cuCtxCreate_v2, &contexts[place], 0u, 0));
    else if (!strcmp(what, "ctx-destroy"))
        printf("%d\n", CALL(cuCtxDestroy_v2, contexts[place]));
    else if (!strcmp(what, "ctx-none"))
        printf("%d\n", CALL(cuCtxSetCurrent, NULL));
    else if (!strcmp(what, "ctx-set"))
        printf("%d\n", CALL(cuCtxSetCurrent, contexts[place]));
    else
        printf("? %s\n", what);
}

static void command(const char *what, const struct words *w)
{
    if (!strcmp(what, "start"))
        printf("%d\n", start((int)w->n[0]));
    else if (!strcmp(what, "info"))
        info();
    else if (!strncmp(what, "ctx-", 4))
        context(what, w);
    else if (!strncmp(what, "array", 5) || !strncmp(what, "mip", 3))
        array_command(what, w);
    else if (!strncmp(what, "vmm-", 4))
        vmm_command(what, w);
    else if (!strncmp(what, "ext-", 4))
        external_command(what, w);
    else if (!strncmp(what, "dma-", 4) || !strncmp(what, "tile-", 5) || !strncmp(what, "mc-", 3))
        bound_command(what, w);
    else if (!strncmp(what, "ipc-", 4))
        ipc_command(what, w);
    else
        linear(what, w);
}

int main(void)
{
    char line[1024], what[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return 99;
    while (fgets(line, sizeof line, stdin)) {
        struct words w = {{0}, ""};
        int used = 0;
        if (sscanf(line, "%31s%n", what, &used) < 1)
            continue;
        char *rest = line + used;
        for (unsigned i = 0; i < WORDS; i++)
            w.n[i] = strtoull(rest, &rest, 0);
        snprintf(w.text, sizeof w.text, "%.*s", (int)strcspn(rest, "\n"), rest);
        command(what, &w);
        fflush(stdout);
    }
    return 0;
}
