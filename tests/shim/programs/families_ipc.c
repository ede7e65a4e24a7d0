/* IPC: ipc-alloc <place> <bytes>, ipc-free <place>, ipc-get <place> [<shift>] (answers the handle as
 * eight numbers), ipc-open <place> <eight numbers>, ipc-open1 by the first version, ipc-close. */
#include "families.h"

#include <stdio.h>
#include <string.h>

struct handle {
    number parts[8];
};

typedef int (*open_function)(number *, struct handle, unsigned);

static number pointers[MANY], opened[MANY];

static void get(unsigned place, number shift)
{
    struct handle h;
    memset(&h, 0xee, sizeof h);
    printf("%d", CALL(cuIpcGetMemHandle, &h, pointers[place] + shift));
    for (unsigned i = 0; i < 8; i++)
        printf(" %llu", h.parts[i]);
    printf("\n");
}

static void open_handle(const char *name, unsigned place, const number *parts)
{
    struct handle h;
    number pointer = SENTINEL;
    open_function call = (open_function)function(name);
    memcpy(h.parts, parts, sizeof h.parts);
    int result = call(&pointer, h, 1);
    if (result == 0)
        opened[place] = pointer;
    printf("%d %llu\n", result, pointer);
}

void ipc_command(const char *what, const struct words *w)
{
    unsigned place = (unsigned)w->n[0] % MANY;
    if (!strcmp(what, "ipc-alloc"))
        printf("%d\n", CALL(cuMemAlloc_v2, &pointers[place], (size_t)w->n[1]));
    else if (!strcmp(what, "ipc-free"))
        printf("%d\n", CALL(cuMemFree_v2, pointers[place]));
    else if (!strcmp(what, "ipc-get"))
        get(place, w->n[1]);
    else if (!strcmp(what, "ipc-open"))
        open_handle("cuIpcOpenMemHandle_v2", place, w->n + 1);
    else if (!strcmp(what, "ipc-open1"))
        open_handle("cuIpcOpenMemHandle", place, w->n + 1);
    else if (!strcmp(what, "ipc-close"))
        printf("%d\n", CALL(cuIpcCloseMemHandle, opened[place]));
    else if (!strcmp(what, "ipc-free-opened"))
        printf("%d\n", CALL(cuMemFree_v2, opened[place]));
    else
        printf("? %s\n", what);
}
