#include "holders.h"

#include <stdatomic.h>

#include "sys.h"

static uint32_t slots_of(const struct ap_ledger *ledger)
{
    uint32_t top = atomic_load(&ledger->head->top);
    return top < APPORTION_LEDGER_SLOT_COUNT ? top : APPORTION_LEDGER_SLOT_COUNT;
}

static struct ap_holder *find(const struct ap_holders *holders, uint32_t pid)
{
    for (uint32_t i = 0; i < holders->count; i++)
        if (holders->list[i].pid == pid)
            return &holders->list[i];
    return NULL;
}

const struct ap_holder *ap_holder_of(const struct ap_holders *holders, uint32_t pid)
{
    return find(holders, pid);
}

static void add(struct ap_holders *holders, uint32_t pid, uint64_t bytes)
{
    struct ap_holder *holder = find(holders, pid);
    if (!holder && holders->count < holders->size / sizeof *holder) {
        holder = &holders->list[holders->count++];
        holder->pid = pid;
        holder->bytes = 0;
    }
    if (holder)
        holder->bytes += bytes;
}

/* The lock is asked for after the slot was read: who still holds it then is whom the slot spoke of,
 * or has taken it over meanwhile, as good as a moment later. */
static void add_living(const struct ap_ledger *ledger, uint64_t namespace, struct ap_holders *out)
{
    int fd = ap_ledger_reopen(ledger);
    if (fd < 0)
        return;
    uint32_t top = slots_of(ledger);
    for (uint32_t index = 0; index < top; index++) {
        struct apportion_ledger_slot *slot = &ledger->slots[index];
        uint64_t bytes = atomic_load(&slot->used);
        uint32_t pid = atomic_load(&slot->pid);
        if (bytes == 0 || pid == 0 || atomic_load(&slot->namespace) != namespace)
            continue;
        if (ap_byte_is_locked(fd, APPORTION_LEDGER_LOCK_SLOTS + (int64_t)index))
            add(out, pid, bytes);
    }
    ap_close(fd);
}

bool ap_gpu_holders(struct ap_gpu *gpu, struct ap_holders *out)
{
    size_t most = 0;
    out->count = 0;
    out->size = 0;
    out->list = NULL;
    for (uint32_t i = 0; i < gpu->share_count; i++)
        most += slots_of(&gpu->shares[i]->ledger);
    if (most == 0)
        return true;
    out->list = ap_map_private(most * sizeof *out->list);
    if (!out->list)
        return false;
    out->size = most * sizeof *out->list;
    uint64_t namespace = ap_pid_namespace();
    for (uint32_t i = 0; i < gpu->share_count && namespace != 0; i++)
        add_living(&gpu->shares[i]->ledger, namespace, out);
    return true;
}

void ap_holders_free(struct ap_holders *holders)
{
    if (holders->list)
        ap_unmap(holders->list, holders->size);
    holders->list = NULL;
}
