#ifndef FAKE_CUDA_POOL_H
#define FAKE_CUDA_POOL_H

#include "cuda.h"

enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_NUMA = 3 };

struct cu_pool {
	CUdevice device;
	bool is_default, on_card, imported, destroyed;
	uint64_t used, reserved, used_high, reserved_high, threshold;
	uint64_t waiting;   /* freed in stream order since the last synchronisation */
	CUstream waiting_for; /* the stream of the last of these */
	uint64_t forgotten; /* freed at once, which "used" never hears of (as the driver's) */
	uint64_t allocations;
	struct cu_pool *next;
};

/* All with the lock held. */
struct cu_pool *cu_new_pool(CUdevice device, bool on_card);
struct cu_pool *cu_default_pool(CUdevice device);

/* True for pools that calls may name: not destroyed, imported or not. */
bool cu_pool_known(const struct cu_pool *pool);

/* Gives back whole chunks that are neither used nor kept. */
void cu_pool_trim(struct cu_pool *pool, uint64_t keep);

/* Room for an allocation; the pool goes on to hold what it got when that is not enough. */
CUresult cu_pool_take(struct cu_alloc *alloc, CUstream stream);

#endif
