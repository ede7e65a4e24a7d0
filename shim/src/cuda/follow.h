/* A charge that follows a figure of the driver's: what a pool, or the graphs of a device, have
 * reserved on the card. The caller holds the lock of whatever `charged` belongs to. */
#ifndef AP_CUDA_FOLLOW_H
#define AP_CUDA_FOLLOW_H

#include "../common/process.h"

#define AP_CHUNK (UINT64_C(32) << 20) /* bytes that pools and graphs take at a time (measured) */

/* The size rounded up to whole chunks; as good as endless when that overflows. */
uint64_t ap_chunks(uint64_t bytes);

/* Makes *charged equal to `reserved`, out of what it is and of `ahead`, which was charged in
 * advance; gives back what is left. False: more is needed and does not fit; then *charged has
 * `ahead` in it. */
bool ap_follow(struct ap_process *process, struct ap_gpu *gpu, _Atomic uint64_t *charged,
               uint64_t ahead, uint64_t reserved);

/* The same for what cannot be undone: over the limit if need be. */
void ap_follow_taken(struct ap_process *process, struct ap_gpu *gpu, _Atomic uint64_t *charged,
                     uint64_t ahead, uint64_t reserved);

#endif
