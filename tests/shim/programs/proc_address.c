/* Asks cuGetProcAddress for each name on the command line in every version and with all flags, of
 * the front and of the driver, and prints a line for each difference that is not a swap of a
 * hooked function for the front's own; then the number of answers compared. The first CUDA call of
 * the process is cuGetProcAddress itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*first_form)(const char *, void **, int, uint64_t);
typedef int (*second_form)(const char *, void **, int, uint64_t, int *);

static void *front, *driver;
static unsigned compared;

/* The front's answer is right if it is the driver's, or the front's export of the same name. */
static int right(void *from_front, void *from_driver)
{
    Dl_info about;
    if (!from_driver || !dladdr(from_driver, &about) || !about.dli_sname)
        return from_front == from_driver;
    Dl_info own;
    void *hook = dlsym(front, about.dli_sname);
    int hooked = hook && dladdr(hook, &own) && own.dli_fbase != about.dli_fbase;
    return from_front == (hooked ? hook : from_driver);
}

static void compare(const char *name, int version, uint64_t flags)
{
    void *a = (void *)1, *b = (void *)1, *c = (void *)1, *e = (void *)1;
    int as = 77, bs = 77;
    first_form f1 = (first_form)dlsym(front, "cuGetProcAddress");
    first_form d1 = (first_form)dlsym(driver, "cuGetProcAddress");
    second_form f2 = (second_form)dlsym(front, "cuGetProcAddress_v2");
    second_form d2 = (second_form)dlsym(driver, "cuGetProcAddress_v2");
    int ar = f2(name, &a, version, flags, &as), br = d2(name, &b, version, flags, &bs);
    int cr = f1(name, &c, version, flags), er = d1(name, &e, version, flags);
    if (ar != br || as != bs || cr != er || !right(a, b) || !right(c, e))
        printf("%s version %d flags %d: %d/%d %d/%d %p/%p %p/%p\n", name, version, (int)flags, ar, br,
               as, bs, a, b, c, e);
    compared += 2;
}

int main(int argc, char **argv)
{
    static const int versions[] = {0,     2000,  3020,  4000,  7000,  7050,  8000,  9000,  11000,
                                   11020, 11030, 11040, 11070, 12000, 12020, 12030, 12050, 13000};
    front = dlopen("libcuda.so.1", RTLD_NOW);
    driver = dlopen("/run/apportion/driver/libcuda.so.1", RTLD_NOW);
    if (!front || !driver || front == driver)
        return 1;
    for (int i = 1; i < argc; i++)
        for (unsigned v = 0; v < sizeof versions / sizeof versions[0]; v++)
            for (uint64_t flags = 0; flags < 4; flags++)
                compare(argv[i], versions[v], flags);
    printf("%u\n", compared);
    return 0;
}
