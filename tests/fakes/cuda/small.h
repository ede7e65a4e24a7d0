#ifndef FAKE_CUDA_SMALL_H
#define FAKE_CUDA_SMALL_H

#include "cuda.h"

/* Allocations below 1 MiB and arrays up to 1 MiB, carved from blocks of 2 MiB in steps of 512 bytes; a block is
 * charged when it is made and given back with its last allocation. With the lock held. */
CUresult cu_small_alloc(struct cu_alloc *alloc);
void cu_small_free(struct cu_alloc *alloc);

/* Lets others hold the block that it lies in: the object's number, or -1; its base to *base. */
int cu_small_share(struct cu_alloc *alloc, uintptr_t *base);

#endif
