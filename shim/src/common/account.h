/* A GPU's shares taken together: charge, give back, look. */
#ifndef AP_ACCOUNT_H
#define AP_ACCOUNT_H

#include "process.h"

#define AP_BLOCK_SHIFT 21
#define AP_BLOCK (UINT64_C(1) << AP_BLOCK_SHIFT) /* bytes that the driver takes at once */

/* Bytes that the shares of this GPU allow in all. */
uint64_t ap_gpu_limit(const struct ap_gpu *gpu);

/* Charges `bytes` or refuses. A refusal comes only after the dead were looked for, and after this
 * process's own reserves (idle memory pools) were given back. */
bool ap_gpu_reserve(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes);

/* Charges `bytes` that the driver has taken already, over the limit if need be, so that everything
 * after it is refused. False: there is no slot to charge it to; nothing is charged. */
bool ap_gpu_force(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes);

/* Gives back `bytes` of what this process was charged. */
void ap_gpu_release(struct ap_gpu *gpu, uint64_t bytes);

/* Bytes charged by all processes of the shares; looks for the dead at most every 100 ms. */
uint64_t ap_gpu_used(struct ap_gpu *gpu);

/* Counts a refusal that was decided elsewhere. */
void ap_gpu_count_denied(struct ap_gpu *gpu);

#endif
