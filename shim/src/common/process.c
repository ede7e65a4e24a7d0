#include "process.h"

#include <stdatomic.h>

#include "sys.h"

static _Atomic(struct ap_process *) state; /* inherited by a child; what it points to is wiped */

struct ap_process *ap_process(void)
{
    struct ap_process *process = atomic_load_explicit(&state, memory_order_acquire);
    if (process)
        return process;
    struct ap_process *fresh = ap_map_wiped_on_fork(sizeof *fresh);
    if (!fresh)
        return NULL;
    if (atomic_compare_exchange_strong(&state, &process, fresh))
        return fresh;
    ap_unmap(fresh, sizeof *fresh);
    return process;
}
