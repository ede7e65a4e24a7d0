#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library(const char *name)
{
    void *loaded = dlopen(name, RTLD_NOW);
    if (!loaded) {
        printf("%s\n", dlerror());
        exit(99);
    }
    return loaded;
}

static void look_up(void *from, const char *name, void *to)
{
    void *found = dlsym(from, name);
    memcpy(to, &found, sizeof found);
}

void driver_load(struct driver *d)
{
    void *cuda = library("libcuda.so.1");
    look_up(cuda, "cuInit", &d->init);
    look_up(cuda, "cuDevicePrimaryCtxRetain", &d->retain);
    look_up(cuda, "cuDevicePrimaryCtxRelease_v2", &d->release);
    look_up(cuda, "cuDevicePrimaryCtxReset_v2", &d->reset);
    look_up(cuda, "cuCtxCreate_v2", &d->create);
    look_up(cuda, "cuCtxDestroy_v2", &d->destroy);
    look_up(cuda, "cuCtxSetCurrent", &d->set);
    look_up(cuda, "cuMemAlloc_v2", &d->alloc);
    look_up(cuda, "cuMemAllocPitch_v2", &d->pitch);
    look_up(cuda, "cuMemAllocManaged", &d->managed);
    look_up(cuda, "cuMemFree_v2", &d->free);
    look_up(cuda, "cuMemGetInfo_v2", &d->info);
    look_up(cuda, "cuDeviceTotalMem_v2", &d->total);
    look_up(cuda, "cuMemCreate", &d->create_memory);
    look_up(cuda, "cuMemRelease", &d->release_memory);
    look_up(cuda, "cuMemAddressReserve", &d->reserve);
    look_up(cuda, "cuMemMap", &d->map);
    look_up(cuda, "cuMemUnmap", &d->unmap);
    look_up(cuda, "cuMemRetainAllocationHandle", &d->retain_memory);
}

void nvml_load(struct nvml *n)
{
    void *nvml = library("libnvidia-ml.so.1");
    look_up(nvml, "nvmlInit_v2", &n->init);
    look_up(nvml, "nvmlDeviceGetHandleByIndex_v2", &n->handle);
    look_up(nvml, "nvmlDeviceGetMemoryInfo", &n->info);
    look_up(nvml, "nvmlDeviceGetMemoryInfo_v2", &n->info_v2);
}
