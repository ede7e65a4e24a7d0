/* Says, for each name on the command line and each way that a program can come by a function, which
 * library it got it from: F front, D driver, - none, ? another.
 *   resolve <way> <name>…    way: handle, default, next, dlvsym, dlmopen, so */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static char origin(void *function)
{
    Dl_info about;
    if (!function)
        return '-';
    if (!dladdr(function, &about) || !about.dli_fname)
        return '?';
    if (strncmp(about.dli_fname, "/run/apportion/driver/", 22) == 0)
        return 'D';
    return strstr(about.dli_fname, "libcuda.so.1") ? 'F' : '?';
}

static void *look_up(const char *way, const char *name)
{
    static void *handle;
    if (strcmp(way, "next") == 0)
        return dlsym(RTLD_NEXT, name);
    if (!handle && strcmp(way, "dlmopen") == 0)
        handle = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (!handle)
        handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (strcmp(way, "default") == 0)
        return dlsym(RTLD_DEFAULT, name);
    if (strcmp(way, "dlvsym") == 0)
        return dlvsym(handle, name, "libcuda.so.1");
    return handle ? dlsym(handle, name) : NULL;
}

int main(int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        printf("%s %c\n", argv[i], origin(look_up(argv[1], argv[i])));
    return 0;
}
