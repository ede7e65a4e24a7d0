/* Virtual memory with others. Handles, places (64 MiB of addresses each) and descriptors by number:
 *   vmm-create h bytes | vmm-release h | vmm-map h place bytes | vmm-unmap place bytes
 *   vmm-export h (answers the descriptor) | vmm-close descriptor
 *   vmm-import h pid descriptor: takes it over from a process as if it had been sent, closes it after
 *   vmm-take pid descriptor (answers its own) | vmm-import-own h descriptor
 *   ext-import e pid descriptor bytes | ext-destroy e | ext-map e part bytes | ext-mip e part
 *   ext-free part | ext-mip-free part | dma-range pointer-place bytes | dma-buf place bytes
 *   tile-map array-handle h level | tile-unmap array-handle level | tile-array n | tile-destroy n
 *   mc-create g bytes | mc-bind g h offset | mc-bind-at g place offset | mc-unbind g offset */
#define _GNU_SOURCE
#include "families.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PLACE ((size_t)64 << 20)

struct properties {
    int type, handle_types, location_type, location;
    void *windows;
    unsigned char flags[8];
};

static number handles[MANY], base;
static void *externals[MANY], *mips[MANY], *sparse[MANY];
static number parts[MANY];

static number place(number n)
{
    if (!base)
        CALL(cuMemAddressReserve, &base, MANY * PLACE, (size_t)0, (number)0, (number)0);
    return base + n % MANY * PLACE;
}

static int taken(number pid, number fd)
{
    int process = (int)syscall(SYS_pidfd_open, (int)pid, 0);
    int got = (int)syscall(SYS_pidfd_getfd, process, (int)fd, 0);
    close(process);
    return got;
}

static void create(number *handle, size_t bytes)
{
    struct properties p = {.type = 1, .handle_types = 1, .location_type = 1};
    number given = SENTINEL;
    int result = CALL(cuMemCreate, &given, bytes, &p, (number)0);
    if (result == 0)
        *handle = given;
    printf("%d %d\n", result, given != SENTINEL);
}

static void import(number *handle, int fd, int close_it)
{
    number given = SENTINEL;
    int result = CALL(cuMemImportFromShareableHandle, &given, (void *)(intptr_t)fd, 1);
    if (close_it)
        close(fd); /* before the answer, so that nobody sees it open after that */
    if (result == 0)
        *handle = given;
    printf("%d %d\n", result, given != SENTINEL);
}

static void export(number handle)
{
    int fd = -1;
    int result = CALL(cuMemExportToShareableHandle, &fd, handle, 1, (number)0);
    printf("%d %d\n", result, fd);
}

void vmm_command(const char *what, const struct words *w)
{
    number *handle = &handles[w->n[0] % MANY];
    if (!strcmp(what, "vmm-create")) {
        create(handle, w->n[1]);
    } else if (!strcmp(what, "vmm-release")) {
        printf("%d\n", CALL(cuMemRelease, *handle));
    } else if (!strcmp(what, "vmm-map")) {
        printf("%d\n", CALL(cuMemMap, place(w->n[1]), (size_t)w->n[2], (size_t)0, *handle,
                            (number)0));
    } else if (!strcmp(what, "vmm-unmap")) {
        printf("%d\n", CALL(cuMemUnmap, place(w->n[0]), (size_t)w->n[1]));
    } else if (!strcmp(what, "vmm-export")) {
        export(*handle);
    } else if (!strcmp(what, "vmm-close")) {
        printf("%d\n", close((int)w->n[0]));
    } else if (!strcmp(what, "vmm-take")) {
        printf("%d\n", taken(w->n[0], w->n[1]));
    } else if (!strcmp(what, "vmm-import-own")) {
        import(handle, (int)w->n[1], 0);
    } else if (!strcmp(what, "vmm-import")) {
        import(handle, taken(w->n[1], w->n[2]), 1);
    } else {
        printf("? %s\n", what);
    }
}

static void import_external(void **memory, int fd, number bytes)
{
    struct {
        int type;
        union {
            int fd;
            void *pointers[2];
        } handle;
        number size;
        unsigned flags, reserved[16];
    } d = {.type = 1, .handle.fd = fd, .size = bytes};
    void *given = (void *)(size_t)SENTINEL;
    int result = CALL(cuImportExternalMemory, &given, &d);
    if (result == 0)
        *memory = given;
    else
        close(fd);
    printf("%d %d\n", result, given != (void *)(size_t)SENTINEL);
}

void external_command(const char *what, const struct words *w)
{
    void **memory = &externals[w->n[0] % MANY];
    unsigned part = (unsigned)w->n[1] % MANY;
    struct {
        number offset, size;
        unsigned flags, reserved[16];
    } d = {.size = w->n[2]};
    if (!strcmp(what, "ext-import"))
        import_external(memory, taken(w->n[1], w->n[2]), w->n[3]);
    else if (!strcmp(what, "ext-destroy"))
        printf("%d\n", CALL(cuDestroyExternalMemory, *memory));
    else if (!strcmp(what, "ext-map"))
        printf("%d\n", CALL(cuExternalMemoryGetMappedBuffer, &parts[part], *memory, &d));
    else if (!strcmp(what, "ext-mip"))
        printf("%d\n", CALL(cuExternalMemoryGetMappedMipmappedArray, &mips[part], *memory, &d));
    else if (!strcmp(what, "ext-free"))
        printf("%d\n", CALL(cuMemFree_v2, parts[w->n[0] % MANY]));
    else if (!strcmp(what, "ext-mip-free"))
        printf("%d\n", CALL(cuMipmappedArrayDestroy, mips[w->n[0] % MANY]));
    else
        printf("? %s\n", what);
}

static void dma_buf(number address, size_t bytes)
{
    int fd = -1;
    int result = CALL(cuMemGetHandleForAddressRange, &fd, address, bytes, 1, (number)0);
    printf("%d %d\n", result, fd);
}

static int map_tile(const char *name, void *array, number handle, unsigned level, int operation)
{
    struct {
        int resource_type;
        void *resource;
        int subresource_type;
        _Alignas(8) unsigned level;
        unsigned layer, x, y, z, width, height, depth;
        int operation, handle_type;
        number handle, offset;
        unsigned devices, flags, reserved[2];
    } info = {.resource = array, .level = level, .width = 64, .height = 64, .depth = 1,
              .operation = operation, .handle = handle, .devices = 1};
    _Static_assert(sizeof info == 96, "as CUarrayMapInfo");
    return ((int (*)(void *, unsigned, void *))function(name))(&info, 1, NULL);
}

static void create_sparse(void **array)
{
    struct {
        size_t width, height, depth;
        int format;
        unsigned channels, flags;
    } d = {2048, 2048, 0, 0x20, 4, 0x40};
    printf("%d\n", CALL(cuArray3DCreate_v2, array, &d));
}

static void create_group(number *group, size_t bytes)
{
    struct {
        unsigned devices;
        size_t size;
        number types, flags;
    } p = {.devices = 1, .size = bytes, .types = 1};
    printf("%d\n", CALL(cuMulticastCreate, group, &p));
}

void bound_command(const char *what, const struct words *w)
{
    number *group = &handles[w->n[0] % MANY], handle = handles[w->n[1] % MANY];
    void **array = &sparse[w->n[0] % MANY];
    if (!strcmp(what, "dma-range"))
        dma_buf(place(w->n[0]), w->n[1]);
    else if (!strcmp(what, "dma-pointer"))
        dma_buf(w->n[0], w->n[1]);
    else if (!strcmp(what, "tile-array"))
        create_sparse(array);
    else if (!strcmp(what, "tile-destroy"))
        printf("%d\n", CALL(cuArrayDestroy, *array));
    else if (!strcmp(what, "tile-map"))
        printf("%d\n", map_tile("cuMemMapArrayAsync", *array, handle, (unsigned)w->n[2], 1));
    else if (!strcmp(what, "tile-map-ptsz"))
        printf("%d\n", map_tile("cuMemMapArrayAsync_ptsz", *array, handle, (unsigned)w->n[2], 1));
    else if (!strcmp(what, "tile-unmap"))
        printf("%d\n", map_tile("cuMemMapArrayAsync", *array, 0, (unsigned)w->n[2], 2));
    else if (!strcmp(what, "mc-create"))
        create_group(group, w->n[1]);
    else if (!strcmp(what, "mc-bind"))
        printf("%d\n", CALL(cuMulticastBindMem, *group, (size_t)w->n[2], handle, (size_t)0,
                            (size_t)w->n[3], (number)0));
    else if (!strcmp(what, "mc-bind2"))
        printf("%d\n", CALL(cuMulticastBindMem_v2, *group, 0, (size_t)w->n[2], handle, (size_t)0,
                            (size_t)w->n[3], (number)0));
    else if (!strcmp(what, "mc-bind-at"))
        printf("%d\n", CALL(cuMulticastBindAddr, *group, (size_t)w->n[2], place(w->n[1]),
                            (size_t)w->n[3], (number)0));
    else if (!strcmp(what, "mc-bind-at2"))
        printf("%d\n", CALL(cuMulticastBindAddr_v2, *group, 0, (size_t)w->n[2], place(w->n[1]),
                            (size_t)w->n[3], (number)0));
    else if (!strcmp(what, "mc-unbind"))
        printf("%d\n", CALL(cuMulticastUnbind, *group, 0, (size_t)w->n[1], (size_t)w->n[2]));
    else
        printf("? %s\n", what);
}
