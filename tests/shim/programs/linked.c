/* A program linked with the driver's library: what it is told and given. */
#include <stdio.h>

#include "driver.h"

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(pointer *, size_t);
int cuMemGetInfo_v2(size_t *, size_t *);

int main(void)
{
    void *context;
    size_t free_bytes = 0, total = 0;
    pointer p;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    int result = cuMemGetInfo_v2(&free_bytes, &total);
    int all = cuMemAlloc_v2(&p, total), more = cuMemAlloc_v2(&p, 1);
    printf("%d %zu %d %d\n", result, total, all, more);
    return 0;
}
