/* Who holds memory of a GPU's shares, as far as this process can name it. */
#ifndef AP_HOLDERS_H
#define AP_HOLDERS_H

#include <stddef.h>

#include "process.h"

struct ap_holder {
    uint32_t pid;
    uint64_t bytes; /* over all shares of the GPU; never 0 */
};

struct ap_holders {
    struct ap_holder *list;
    uint32_t count;
    size_t size; /* of the mapping that `list` is */
};

/* Lists the living processes of this PID namespace that hold memory of the GPU's shares, each once.
 * One of another namespace cannot be named here: its PID means another process, or none. False:
 * there is no memory for the list. ap_holders_free afterwards, in either case. */
bool ap_gpu_holders(struct ap_gpu *gpu, struct ap_holders *out);
void ap_holders_free(struct ap_holders *holders);

/* NULL: that process is not in the list. */
const struct ap_holder *ap_holder_of(const struct ap_holders *holders, uint32_t pid);

#endif
