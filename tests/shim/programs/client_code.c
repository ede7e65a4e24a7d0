/* The application's commands for what takes device memory without an allocation call: contexts,
 * modules, libraries, limits, streams, green contexts. Each thing has a number. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

#define SENTINEL 0xdeadbeefUL
#define MANY 512

#define CALL(name, parameters, ...)                                      \
    ({                                                                   \
        int(*called) parameters = NULL;                                  \
        void *found = dlsym(cuda, #name);                                \
        memcpy(&called, &found, sizeof found);                           \
        called ? called(__VA_ARGS__) : -1;                               \
    })

static void *cuda;
static void *contexts[MANY], *modules[MANY], *libraries[MANY], *greens[MANY], *streams[MANY];

#define IMAGE_FILE "/run/fakegpu/image" /* that *-file commands load */
#define HIDDEN "// " /* before the variable: the simulated driver sees it, nobody else */

static const char *image(char *out, size_t size, unsigned long bytes, const char *more)
{
    bool hidden = !strcmp(more, HIDDEN);
    snprintf(out, size, ".version 6.4\n%s.global .align 8 .b8 big[%lu];\n%s", hidden ? more : "",
             bytes, hidden ? "" : more);
    return out;
}

/* Result, and whether the caller's variable was written. */
static void answer(int result, void **keep, void *given)
{
    if (result == 0)
        *keep = given;
    printf("%d %d\n", result, given != (void *)SENTINEL);
}

/* code-context version number: on device 0 */
static void create(unsigned long version, unsigned long number)
{
    void *given = (void *)SENTINEL;
    int result = -1;
    if (version == 1)
        result = CALL(cuCtxCreate, (void **, unsigned, int), &given, 0, 0);
    else if (version == 2)
        result = CALL(cuCtxCreate_v2, (void **, unsigned, int), &given, 0, 0);
    else if (version == 3)
        result = CALL(cuCtxCreate_v3, (void **, void *, int, unsigned, int), &given, NULL, 0, 0, 0);
    else if (version == 11)
        result = CALL(cuGLCtxCreate, (void **, unsigned, int), &given, 0, 0);
    else if (version == 12)
        result = CALL(cuGLCtxCreate_v2, (void **, unsigned, int), &given, 0, 0);
    else if (version == 21)
        result = CALL(cuVDPAUCtxCreate, (void **, unsigned, int, unsigned, void *), &given, 0, 0, 0,
                      NULL);
    else if (version == 22)
        result = CALL(cuVDPAUCtxCreate_v2, (void **, unsigned, int, unsigned, void *), &given, 0, 0,
                      0, NULL);
    else
        result = CALL(cuCtxCreate_v4, (void **, void *, unsigned, int), &given, NULL, 0, 0);
    answer(result, &contexts[number], given);
}

static void load(unsigned long bytes, unsigned long number, const char *more)
{
    char text[256];
    void *given = (void *)SENTINEL;
    int result = CALL(cuModuleLoadData, (void **, const void *), &given,
                      image(text, sizeof text, bytes, more));
    answer(result, &modules[number], given);
}

/* code-get-function number; code-get-global number: whether the caller's variable was written */
static void get(const char *what, unsigned long number)
{
    void *given = (void *)SENTINEL, *unused;
    int result = !strcmp(what, "code-get-function")
                     ? CALL(cuModuleGetFunction, (void **, void *, const char *), &given,
                            modules[number], "k")
                     : CALL(cuModuleGetGlobal_v2, (void **, size_t *, void *, const char *), &given,
                            NULL, modules[number], "big");
    answer(result, &unused, given);
}

/* code-launch number: the module's kernel */
static void launch(void *function)
{
    printf("%d\n", CALL(cuLaunchKernel,
                        (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, void *, void **, void **),
                        function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

/* code-module-way way bytes number: of cuModuleLoad...; 4: from the file */
static void load_by(unsigned way, unsigned long bytes, unsigned long number)
{
    char text[256];
    void *given = (void *)SENTINEL;
    const void *data = image(text, sizeof text, bytes, "");
    int result = -1;
    if (way == 1)
        result = CALL(cuModuleLoadData, (void **, const void *), &given, data);
    else if (way == 2)
        result = CALL(cuModuleLoadDataEx, (void **, const void *, unsigned, int *, void **), &given,
                      data, 0, NULL, NULL);
    else if (way == 3)
        result = CALL(cuModuleLoadFatBinary, (void **, const void *), &given, data);
    else
        result = CALL(cuModuleLoad, (void **, const char *), &given, IMAGE_FILE);
    answer(result, &modules[number], given);
}

static void load_library(unsigned long bytes, unsigned long number, const char *more)
{
    char text[256];
    void *given = (void *)SENTINEL;
    int result = CALL(cuLibraryLoadData,
                      (void **, const void *, int *, void **, unsigned, int *, void **, unsigned),
                      &given, image(text, sizeof text, bytes, more), NULL, NULL, 0, NULL, NULL, 0);
    answer(result, &libraries[number], given);
}

static void load_library_file(unsigned long number)
{
    void *given = (void *)SENTINEL;
    int result = CALL(cuLibraryLoadFromFile,
                      (void **, const char *, int *, void **, unsigned, int *, void **, unsigned),
                      &given, IMAGE_FILE, NULL, NULL, 0, NULL, NULL, 0);
    answer(result, &libraries[number], given);
}

static void library_command(const char *what, unsigned long a, unsigned long b)
{
    void *kernel = NULL, *other = NULL;
    unsigned long unused = 0;
    if (!strcmp(what, "code-library") || !strcmp(what, "code-library-hidden")) {
        load_library(a, b, what[12] ? HIDDEN : "");
        return;
    }
    if (!strcmp(what, "code-library-file")) {
        load_library_file(a);
        return;
    }
    (void)CALL(cuLibraryGetKernel, (void **, void *, const char *), &kernel, libraries[a], "k");
    if (!strcmp(what, "code-library-launch"))
        launch(kernel);
    else if (!strcmp(what, "code-library-function"))
        printf("%d\n", CALL(cuKernelGetFunction, (void **, void *), &other, kernel));
    else if (!strcmp(what, "code-library-module"))
        printf("%d\n", CALL(cuLibraryGetModule, (void **, void *), &other, libraries[a]));
    else if (!strcmp(what, "code-library-global"))
        printf("%d\n", CALL(cuLibraryGetGlobal, (void **, size_t *, void *, const char *), &other,
                            &unused, libraries[a], "big"));
    else if (!strcmp(what, "code-library-unload"))
        printf("%d\n", CALL(cuLibraryUnload, (void *), libraries[a]));
    else
        printf("? %s\n", what);
}

/* code-green number; code-green-set number; code-green-destroy number */
static void green_command(const char *what, unsigned long number)
{
    int resource[64] = {0};
    void *description = NULL, *given = (void *)SENTINEL;
    if (!strcmp(what, "code-green")) {
        (void)CALL(cuDeviceGetDevResource, (int, void *, int), 0, resource, 1);
        (void)CALL(cuDevResourceGenerateDesc, (void **, void *, unsigned), &description, resource,
                   1);
        int result = CALL(cuGreenCtxCreate, (void **, void *, int, unsigned), &given, description, 0,
                          1);
        answer(result, &greens[number], given);
    } else if (!strcmp(what, "code-green-set")) {
        int result = CALL(cuCtxFromGreenCtx, (void **, void *), &given, greens[number]);
        printf("%d\n", result ? result : CALL(cuCtxSetCurrent, (void *), given));
    } else if (!strcmp(what, "code-green-stream")) {
        int result = CALL(cuGreenCtxStreamCreate, (void **, void *, unsigned, int), &given,
                          greens[number], 1, 0);
        answer(result, &streams[number], given);
    } else {
        printf("%d\n", CALL(cuGreenCtxDestroy, (void *), greens[number]));
    }
}

/* code-streams count: result of the last, number made */
static void make_streams(unsigned long count)
{
    unsigned long made = 0;
    int result = 0;
    while (made < count && result == 0) {
        result = CALL(cuStreamCreate, (void **, unsigned), &streams[made], 1);
        made += result == 0;
    }
    printf("%d %lu\n", result, made);
}

static void context_command(const char *what, unsigned long a, unsigned long b)
{
    void *given = NULL;
    if (!strcmp(what, "code-context"))
        create(a, b);
    else if (!strcmp(what, "code-destroy"))
        printf("%d\n", CALL(cuCtxDestroy_v2, (void *), contexts[a]));
    else if (!strcmp(what, "code-attach"))
        printf("%d\n", CALL(cuCtxAttach, (void **, unsigned), &given, 0));
    else if (!strcmp(what, "code-detach"))
        printf("%d\n", CALL(cuCtxDetach, (void *), contexts[a]));
    else if (!strcmp(what, "code-limit"))
        printf("%d\n", CALL(cuCtxSetLimit, (int, size_t), (int)a, b));
    else if (!strcmp(what, "code-streams"))
        make_streams(a);
    else
        printf("? %s\n", what);
}

void code_command(const char *what, unsigned long a, unsigned long b)
{
    void *function = NULL;
    if (!cuda)
        cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!strcmp(what, "code-module")) {
        load(a, b, "");
    } else if (!strncmp(what, "code-module-way", 15)) {
        load_by((unsigned)what[15] - '0', a, b);
    } else if (!strcmp(what, "code-heap-module")) {
        load(a, b, ".extern .func (.param .b64 r) malloc (.param .b64 s);\n");
    } else if (!strcmp(what, "code-lazy-module")) {
        load(a, b, "// lazy\n");
    } else if (!strcmp(what, "code-get-function") || !strcmp(what, "code-get-global")) {
        get(what, a);
    } else if (!strcmp(what, "code-unload")) {
        printf("%d\n", CALL(cuModuleUnload, (void *), modules[a]));
    } else if (!strcmp(what, "code-launch")) {
        (void)CALL(cuModuleGetFunction, (void **, void *, const char *), &function, modules[a],
                   "k");
        launch(function);
    } else if (!strcmp(what, "code-sync")) {
        printf("%d\n", CALL(cuCtxSynchronize, (void)));
    } else if (!strncmp(what, "code-library", 12)) {
        library_command(what, a, b);
    } else if (!strncmp(what, "code-green", 10)) {
        green_command(what, a);
    } else {
        context_command(what, a, b);
    }
}
