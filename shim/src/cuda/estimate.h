/* How long each kernel and graph takes, learnt from what was measured. Pure. Nanoseconds. */
#ifndef AP_CUDA_ESTIMATE_H
#define AP_CUDA_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

#define AP_ESTIMATES 4096u
#define AP_ITEMS 32u /* kinds of work in one measurement: a step of training has some tens */

struct ap_estimate {
    uint64_t key;     /* 0: none yet */
    uint64_t time;
    uint32_t samples; /* 0: the time is not known */
    uint32_t trials;  /* launches under way that will tell it */
    uint32_t unclean; /* measurements since the last one that had the GPU for itself */
    uint32_t longer;  /* measurements in a row that took much longer */
};

/* All zero is empty. A new key may take the place of another; that one is then learnt anew. */
struct ap_estimates {
    struct ap_estimate of[AP_ESTIMATES];
};

/* Launches of one kind in a measurement. */
struct ap_item {
    uint64_t key;
    uint32_t place; /* of its estimate */
    uint32_t count;
};

/* The key of a kernel with so many blocks: half an octave of them has one time. Not 0. */
uint64_t ap_estimate_key(const void *function, uint64_t blocks);

/* The place of this key's estimate, which is empty when it is new. */
uint32_t ap_estimate_place(struct ap_estimates *estimates, uint64_t key);

/* The key comes to mean something else. */
void ap_estimate_forget(struct ap_estimates *estimates, uint64_t key);

/* What the items should take by themselves; `unknown` for one launch of what is not known. */
uint64_t ap_estimate_sum(const struct ap_estimates *estimates, const struct ap_item *items,
                         uint32_t count, uint64_t unknown);

/* Whether all of them are known. */
bool ap_estimate_all_known(const struct ap_estimates *estimates, const struct ap_item *items,
                           uint32_t count);

/* The items took so long together; their trials are over. */
void ap_estimate_learn(struct ap_estimates *estimates, const struct ap_item *items, uint32_t count,
                       uint64_t took);

/* The items were measured; `clean`: wholly within the share's slots. */
void ap_estimate_measured(struct ap_estimates *estimates, const struct ap_item *items,
                          uint32_t count, bool clean);

/* Whether what they take by themselves is still to be believed: what never fits a slot, or has come
 * to take longer, is not measured cleanly. */
bool ap_estimate_is_clean(const struct ap_estimates *estimates, const struct ap_item *items,
                          uint32_t count);

/* The trials are over without a result: what is not known is `assumed` from now on. */
void ap_estimate_assume(struct ap_estimates *estimates, const struct ap_item *items, uint32_t count,
                        uint64_t assumed);

#endif
