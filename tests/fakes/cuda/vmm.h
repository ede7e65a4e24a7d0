#ifndef FAKE_CUDA_VMM_H
#define FAKE_CUDA_VMM_H

#include "cuda.h"

/* Physical memory lives until its last reference, its last mapping and the last array or multicast
 * group that holds it are gone. */
struct physical {
	CUdevice device;
	bool on_device, group; /* group: of multicast, no memory */
	size_t size;
	int object; /* from 1: others may hold it, too */
	unsigned references, maps;
	struct physical *next;
};

/* All with the lock held. The memory of a handle that still has references, or NULL. */
struct physical *cu_physical(CUhandle handle);

/* Puts it on the books with one reference. */
CUhandle cu_physical_add(struct physical *memory);

/* Drops one mapping, or what counts like one. */
void cu_physical_unmap(struct physical *memory);

/* What is mapped at an address, or NULL. */
struct physical *cu_physical_at(uintptr_t address);

/* Makes of it what others may hold; the object's number or -1. */
int cu_physical_share(struct physical *memory);

#endif
