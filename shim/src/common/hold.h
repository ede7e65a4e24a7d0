/* What this process holds together with others of its shares: see ledger_shared.c. A hold is named
 * by a number that is not 0, and counts how often this process holds it. */
#ifndef AP_HOLD_H
#define AP_HOLD_H

#include "process.h"

/* Makes of `bytes` that this process was charged on the GPU something that others can find by
 * `object` (not 0). 0: not possible, all stays as it was. */
uint32_t ap_hold_make(struct ap_process *process, struct ap_gpu *gpu, uint64_t object,
                      uint64_t bytes);

/* Holds, once more or with others, what is known by `object`. 0: nothing is. */
uint32_t ap_hold_find(struct ap_process *process, struct ap_gpu *gpu, uint64_t object);

/* What it is known by. */
uint64_t ap_hold_object(struct ap_process *process, uint32_t hold);

/* Its size in bytes. */
uint64_t ap_hold_size(struct ap_process *process, uint32_t hold);

/* A number for what is known by some bytes: never one that ap_descriptor_object makes. */
uint64_t ap_hold_known_by(const void *bytes, size_t size);

/* Counts one more hold. */
void ap_hold_again(struct ap_process *process, uint32_t hold);

/* Nobody else finds it any more: what it is known by may come to mean something else. */
void ap_hold_retire(struct ap_process *process, uint32_t hold);

/* Lets go once. The last one of all processes gives the charge back. */
void ap_hold_drop(struct ap_process *process, uint32_t hold);

/* Bytes of this GPU that this process holds so: not in its own slot, but perhaps in what the
 * driver says that it has. */
uint64_t ap_hold_bytes(struct ap_gpu *gpu);

#endif
