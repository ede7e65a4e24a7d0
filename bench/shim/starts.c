/* Processes that start to use the driver all at once.
 *   starts <library> <processes> <init|alloc> <rounds>
 * Prints a line for each round, loading the library included: nanoseconds from the moment they are
 * let go until the last one is through, and the microseconds of processor time that they all took
 * in their whole lives, which other work on the machine spoils less. "alloc" goes on to a first
 * allocation. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *look_up(void *library, const char *name)
{
    void *found = library ? dlsym(library, name) : NULL;
    if (!found)
        _exit(3);
    return found;
}

static int use(const char *path, int allocate)
{
    void *library = dlopen(path, RTLD_NOW), *context, *found;
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*alloc)(uint64_t *, size_t);
    uint64_t pointer;
    found = look_up(library, "cuInit");
    memcpy(&init, &found, sizeof init);
    if (init(0))
        return 1;
    if (!allocate)
        return 0;
    found = look_up(library, "cuDevicePrimaryCtxRetain");
    memcpy(&retain, &found, sizeof retain);
    found = look_up(library, "cuCtxSetCurrent");
    memcpy(&set, &found, sizeof set);
    found = look_up(library, "cuMemAlloc_v2");
    memcpy(&alloc, &found, sizeof alloc);
    return retain(&context, 0) || set(context) || alloc(&pointer, 2 << 20);
}

static void child(const char *path, int allocate, int gate, int ready, int through)
{
    char byte = 0;
    if (write(ready, &byte, 1) != 1 || read(gate, &byte, 1) != 0)
        _exit(3);
    byte = (char)use(path, allocate);
    if (write(through, &byte, 1) != 1)
        _exit(3);
    _exit(0);
}

static void read_each(int from, unsigned count)
{
    char byte;
    while (count--)
        if (read(from, &byte, 1) != 1 || byte) {
            printf("a process failed\n");
            exit(1);
        }
}

static double round_of(const char *path, unsigned processes, int allocate)
{
    int gate[2], ready[2], through[2];
    struct timespec from, to;
    if (pipe(gate) || pipe(ready) || pipe(through))
        exit(1);
    for (unsigned i = 0; i < processes; i++)
        if (fork() == 0) {
            close(gate[1]);
            child(path, allocate, gate[0], ready[1], through[1]);
        }
    read_each(ready[0], processes);
    clock_gettime(CLOCK_MONOTONIC, &from);
    close(gate[1]); /* an end of file for all of them */
    read_each(through[0], processes);
    clock_gettime(CLOCK_MONOTONIC, &to);
    while (wait(NULL) > 0)
        continue;
    close(gate[0]), close(ready[0]), close(ready[1]), close(through[0]), close(through[1]);
    return (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
}

static unsigned long processor_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    return (unsigned long)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000ul +
           (unsigned long)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    for (unsigned long round = strtoul(argv[4], NULL, 10); round > 0; round--) {
        unsigned long before = processor_us();
        double took = round_of(argv[1], (unsigned)atoi(argv[2]), !strcmp(argv[3], "alloc"));
        printf("%.0f %lu\n", took, processor_us() - before);
    }
    return 0;
}
