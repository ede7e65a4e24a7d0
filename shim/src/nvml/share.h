/* From a handle of NVML's to the share, and what the answers about processes have in common. */
#ifndef AP_NVML_SHARE_H
#define AP_NVML_SHARE_H

#include "../common/account.h"
#include "../common/holders.h"
#include "front.h"

/* NULL: the card has no valid share in this container. */
struct ap_gpu *ap_nvml_gpu(nvmlDevice_t device);

/* The processes of the share that this container can name; none without a share. NVML_SUCCESS, or
 * an error and an empty list. ap_holders_free afterwards, in either case. */
nvmlReturn_t ap_nvml_holders(nvmlDevice_t device, struct ap_holders *out);

/* Answers as the driver does when the caller's array has `*count` places: how many there are, and
 * nothing of them when they are more. */
nvmlReturn_t ap_nvml_room(unsigned int *count, const void *array, unsigned int found);

/* What the driver wrote into memory of ours. */
struct ap_fetched {
    unsigned char *at;
    size_t size;
    unsigned int count;
};

/* One call of the driver's function, with `*count` places at `array`. */
typedef nvmlReturn_t ap_ask(const void *question, unsigned int *count, void *array);

/* Asks for as many entries as there are; `entry`: bytes of one. No entries is success, too.
 * ap_fetched_free afterwards, in either case. */
nvmlReturn_t ap_nvml_fetch(ap_ask *ask, const void *question, size_t entry, struct ap_fetched *out);
void ap_fetched_free(struct ap_fetched *fetched);

#endif
