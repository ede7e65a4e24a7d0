/* What the driver says that this process holds on a card, by its management library. */
#ifndef AP_CUDA_OWN_H
#define AP_CUDA_OWN_H

#include "../common/process.h"

enum ap_own_answer {
    AP_OWN_UNKNOWN, /* it does not tell */
    AP_OWN_ABSENT,  /* it tells of others, if any, but not of this process */
    AP_OWN_TOLD,
};

/* Bytes by the driver's own accounts: contexts, code, heaps and allocations, without managed and
 * host memory (driver 580, H200: exact to the byte, at once, in 13 to 20 us). */
enum ap_own_answer ap_own_memory(struct ap_process *process, struct ap_gpu *gpu, uint64_t *bytes);

#endif
