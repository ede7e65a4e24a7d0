/* A GPU's shares taken together: charge, give back, look. */
#ifndef AP_ACCOUNT_H
#define AP_ACCOUNT_H

#include "process.h"

#define AP_BLOCK_SHIFT 21
#define AP_BLOCK (UINT64_C(1) << AP_BLOCK_SHIFT) /* bytes that the driver takes at once */

/* A refusal is near: gives back what the driver has meanwhile given back. In the CUDA front alone
 * (cuda/truth.c), and called where it is there. */
__attribute__((weak, visibility("hidden"))) void ap_truth_before_refusal(struct ap_process *process,
                                                                         struct ap_gpu *gpu);

/* The GPU whose share's ledger this is; NULL: none that is known. */
struct ap_gpu *ap_gpu_of_ledger(struct ap_process *process, const struct ap_ledger *ledger);

/* Its UUID as the driver writes it. */
#define AP_UUID_TEXT 41
void ap_uuid_name(const uint8_t uuid[16], char text[AP_UUID_TEXT]);

/* Bytes that the shares of this GPU allow in all. */
uint64_t ap_gpu_limit(const struct ap_gpu *gpu);

/* Charges `bytes` or refuses. A refusal comes only after the dead were looked for, and after this
 * process's own reserves (idle memory pools) were given back. */
bool ap_gpu_reserve(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes);

/* Charges `bytes` that the driver has taken already, over the limit if need be, so that everything
 * after it is refused. False: there is no slot to charge it to; nothing is charged. */
bool ap_gpu_force(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes);

/* After `bytes` were refused, with no lock held that others need: if they fit without what the
 * driver is about to free of the dead, waits for that, a little over AP_LINGER_MS at most. True:
 * try again. */
bool ap_gpu_await_dead(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes);

/* Both. */
bool ap_gpu_reserve_patiently(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes);

/* Gives back `bytes` of what this process was charged. */
void ap_gpu_release(struct ap_gpu *gpu, uint64_t bytes);

/* Bytes charged by all processes of the shares; looks for the dead at most every 100 ms. */
uint64_t ap_gpu_used(struct ap_gpu *gpu);

/* Whether more is charged than the shares allow and `margin` bytes, the dead left out. */
bool ap_gpu_is_over(struct ap_process *process, struct ap_gpu *gpu, uint64_t margin);

/* Bytes charged to this process; `steps` says how many charges and releases it has begun. False:
 * one is under way. */
bool ap_gpu_mine(struct ap_gpu *gpu, uint64_t *bytes, uint64_t *steps);

/* Around a call of the driver's with the charge that belongs to it, in either order: meanwhile the
 * charge and the driver's word disagree, and nothing may be concluded from that (cuda/truth.c). */
static inline void ap_gpu_move_begins(struct ap_gpu *gpu)
{
    atomic_fetch_add(&gpu->moving, 1);
}

static inline void ap_gpu_move_ends(struct ap_gpu *gpu)
{
    atomic_fetch_sub(&gpu->moving, 1);
}

/* Counts a refusal that was decided elsewhere. */
void ap_gpu_count_denied(struct ap_gpu *gpu);

#endif
