/* The application's commands for virtual memory management. Handles are named by number, places by
 * number too: each is 64 MiB of one reservation of addresses. */
#include <stdio.h>
#include <string.h>

#include "driver.h"

#define SENTINEL 0xdeadbeefULL
#define MANY 64
#define PLACE (64ULL << 20)

struct properties {
    int type, handle_types, location_type, location;
    void *windows;
    unsigned char flags[8];
};

static pointer handles[MANY];
static pointer base;

static pointer place(const struct driver *d, unsigned long number)
{
    if (!base && d->reserve(&base, MANY * PLACE, 0, 0, 0) != 0)
        base = 0;
    return base + (number % MANY) * PLACE;
}

/* vmm-create bytes number; vmm-host bytes number */
static void create(const struct driver *d, size_t bytes, unsigned long number, int location)
{
    struct properties properties = {.type = 1, .location_type = location};
    pointer handle = SENTINEL;
    int result = d->create_memory(&handle, bytes, &properties, 0);
    if (result == 0)
        handles[number % MANY] = handle;
    printf("%d %d\n", result, handle != SENTINEL);
}

/* vmm-churn bytes steps: what llama.cpp does (create, map, release), then everything unmapped. */
static void pool(const struct driver *d, size_t bytes, unsigned long steps)
{
    unsigned long done = 0;
    int result = 0;
    struct properties properties = {.type = 1, .location_type = 1};
    for (; done < steps && result == 0; done++) {
        pointer handle;
        result = d->create_memory(&handle, bytes, &properties, 0);
        if (result)
            break;
        result = d->map(place(d, 0) + done * bytes, bytes, 0, handle, 0);
        d->release_memory(handle);
    }
    printf("%d %lu\n", result, done);
}

void vmm_command(const struct driver *d, const char *what, unsigned long a, unsigned long b)
{
    if (!strcmp(what, "vmm-create"))
        create(d, a, b, 1);
    else if (!strcmp(what, "vmm-host"))
        create(d, a, b, 3);
    else if (!strcmp(what, "vmm-release"))
        printf("%d\n", d->release_memory(handles[a % MANY]));
    else if (!strcmp(what, "vmm-map")) /* number at place, 4 MiB */
        printf("%d\n", d->map(place(d, b), 4 << 20, 0, handles[a % MANY], 0));
    else if (!strcmp(what, "vmm-unmap")) /* bytes at the place */
        printf("%d\n", d->unmap(place(d, b), a));
    else if (!strcmp(what, "vmm-retain")) /* by place */
        printf("%d\n", d->retain_memory(&handles[b % MANY], (void *)(size_t)place(d, a)));
    else if (!strcmp(what, "vmm-pool"))
        pool(d, a, b);
    else
        printf("? %s\n", what);
}
