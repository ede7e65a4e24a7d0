/* Stream-ordered memory pools. What the driver does was measured (driver 580, H200):
 *
 *   A pool takes chunks of 32 MiB from the card when no free room in it will do; the card's use is
 *   its attribute RESERVED to the byte. It gives chunks back when a stream, an event or a context
 *   is synchronised (what it keeps beyond its threshold), when it is trimmed after that, when
 *   memory of it is freed at once (cuMemFree), and when it ends.
 *   Its attribute USED never falls by what was freed at once, so it is an upper bound.
 *
 * So each pool is charged with what it has reserved, and not with what was asked for. Before an
 * allocation for which its free room may not do, as much is charged as it may take; afterwards the
 * charge is set to what it has. If its free room was in pieces too short, and the share has no room
 * for what was taken in their place, that is freed again and refused.
 *
 * Pools on the host are not charged; nor are imported ones, whose memory is their exporter's. */
#ifndef AP_CUDA_POOL_H
#define AP_CUDA_POOL_H

#include "../common/process.h"
#include "front.h"

enum ap_pool_kind { AP_POOL_CHARGED, AP_POOL_UNCHARGED };

enum ap_pool_attribute { AP_POOL_THRESHOLD = 4, AP_POOL_RESERVED = 5, AP_POOL_USED = 7 };

/* Asks the driver; false: it does not say. */
bool ap_pool_ask(const struct ap_pool *pool, enum ap_pool_attribute attribute, uint64_t *bytes);

/* The pool's record; NULL: not seen yet. */
struct ap_pool *ap_pool_find(struct ap_process *process,
                             const struct CUmemPoolHandle_st *handle);

/* Makes one, unless there is one already. NULL: too many pools. */
struct ap_pool *ap_pool_note(struct ap_process *process, CUmemoryPool handle,
                             enum ap_pool_kind kind, struct ap_gpu *gpu);

/* Finds or makes one. A pool that no call told us of is some device's default pool, or it is taken
 * for one on `device`. */
struct ap_pool *ap_pool_of(struct ap_process *process, CUmemoryPool handle, CUdevice device);

/* The pool from which `device` allocates; an error of the driver's when there is none. */
CUresult ap_pool_current(struct ap_process *process, CUdevice device, CUmemoryPool *handle);

/* Devices that the driver knows; 0 before it is initialised. With the first answer it is arranged
 * that refusals look at pools, graphs and what was freed in stream order. */
int ap_device_count(struct ap_process *process);

/* With the pool's lock. Gives the card back what the pool does not use, as far as the driver
 * does so now, and its charge. */
void ap_pool_trim(struct ap_process *process, struct ap_pool *pool);

/* Charges every pool, and every device's graphs, with what they have now. Waits for nobody. */
void ap_pools_look(struct ap_process *process);

#endif
