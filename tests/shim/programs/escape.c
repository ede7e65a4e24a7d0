/* Asks the driver for memory, having come by it in one of many ways; prints the results of loading,
 * of the first context and of the allocation, as far as it came.
 *   escape <way> <bytes> [library]     way: handle, default, next, dlvsym, dlmopen,
 *   address; or total, which asks for the card's size instead */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int function();

static const char *way;
static void *library;

static void *look_up(const char *name)
{
#ifdef RTLD_NEXT
    if (strcmp(way, "next") == 0)
        return dlsym(RTLD_NEXT, name);
    if (strcmp(way, "default") == 0)
        return dlsym(RTLD_DEFAULT, name);
#endif
#ifdef __GLIBC__
    if (strcmp(way, "dlvsym") == 0) {
        void *found = dlvsym(library, name, "libcuda.so.1");
        return found ? found : dlsym(library, name);
    }
#endif
    return dlsym(library, name);
}

/* As the runtime does, static or shared: nothing but cuGetProcAddress is asked for by name. */
static function *address_of(const char *name)
{
    void *found = NULL;
    if (strcmp(way, "address") == 0) {
        function *get = (function *)look_up("cuGetProcAddress");
        if (!get || get(name, &found, 12000, 0ull, NULL) != 0)
            return NULL;
    } else {
        found = look_up(name);
    }
    return (function *)found;
}

static void *load(const char *name)
{
#ifdef __GLIBC__
    if (strcmp(way, "dlmopen") == 0)
        return dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
#endif
    return dlopen(name, RTLD_NOW | RTLD_GLOBAL);
}

int main(int argc, char **argv)
{
    unsigned long long memory = 0;
    void *context = NULL;
    if (argc < 3)
        return 1;
    way = argv[1];
    library = load(argc > 3 ? argv[3] : "libcuda.so.1");
    function *init = library ? address_of("cuInit") : NULL;
    if (!init) {
        puts("none");
        return 0;
    }
    const char *suffix = strcmp(way, "address") == 0 ? "" : "_v2";
    char alloc[32];
    snprintf(alloc, sizeof alloc, "cuMemAlloc%s", suffix);
    int result = init(0);
    if (strcmp(way, "total") == 0) {
        result = result ? result : address_of("cuDeviceTotalMem_v2")(&memory, 0);
        printf("%d %llu\n", result, memory);
        return 0;
    }
    if (result == 0)
        result = address_of("cuDevicePrimaryCtxRetain")(&context, 0);
    if (result == 0)
        result = address_of("cuCtxSetCurrent")(context);
    printf("%d ", result);
    printf("%d\n", address_of(alloc)(&memory, (size_t)strtoull(argv[2], NULL, 10)));
    return 0;
}
