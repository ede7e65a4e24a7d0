/* Whether the owner of a slot is dead, and whether the driver has freed what it had.
 *
 * A killed process's mappings, and with them the lock of its slot, go before its descriptors, with
 * which the driver frees its memory: 94 ms before, seen on an H200 (driver 580.159.04) with 2.7 GB.
 * Until then nobody should be granted the same bytes again. So a slot stays as it is while the
 * driver lists its owner with memory: to the argument of ledger_sweep.c that is a sweep that comes
 * later.
 *
 * Only PIDs of this process's namespace can be asked about. A PID that has been given out again, or
 * that has gone on to another program by exec, speaks of another process: then it is this one's, or
 * another living slot's. Where that cannot be seen, and whatever the driver says, AP_LINGER_MS
 * after the death was first noticed the slot is taken over. */
#include <errno.h>
#include <stdatomic.h>

#include "ledger.h"
#include "sys.h"

#define LINGER_NS (AP_LINGER_MS * UINT64_C(1000000))

static int64_t byte_of(uint32_t index)
{
    return APPORTION_LEDGER_LOCK_SLOTS + (int64_t)index;
}

static struct ap_dead look(struct apportion_ledger_slot *slot)
{
    return (struct ap_dead){.started = atomic_load(&slot->started), .pid = atomic_load(&slot->pid)};
}

static bool is_same(struct apportion_ledger_slot *slot, const struct ap_dead *dead)
{
    struct ap_dead now = look(slot);
    return now.pid == dead->pid && (now.pid == 0 || now.started == dead->started);
}

int ap_ledger_lock_dead(const struct ap_ledger *ledger, int fd, uint32_t index,
                        const struct ap_dead *dead)
{
    int error = ap_byte_lock_try(fd, byte_of(index));
    if (error < 0 || is_same(&ledger->slots[index], dead))
        return error;
    ap_byte_unlock(fd, byte_of(index)); /* it has had another owner, who may linger */
    return -EAGAIN;
}

/* Whether another slot's owner, who lives, has the same PID. */
static bool is_used_again(const struct ap_ledger *ledger, int fd, uint32_t index, uint32_t pid,
                          uint64_t namespace)
{
    uint32_t top = atomic_load(&ledger->head->top);
    for (uint32_t i = 0; i < top && i < APPORTION_LEDGER_SLOT_COUNT; i++) {
        struct apportion_ledger_slot *other = &ledger->slots[i];
        if (i != index && atomic_load(&other->pid) == pid &&
            atomic_load(&other->namespace) == namespace && ap_byte_is_locked(fd, byte_of(i)))
            return true;
    }
    return false;
}

static bool has_lingered(const struct apportion_ledger_slot *slot)
{
    uint64_t died = atomic_load(&slot->died);
    return died != 0 && ap_boot_ns() - died >= LINGER_NS; /* so is a time to come */
}

/* Without the lock, which would look to others as if the owner lived. If the slot changes hands in
 * between, its next owner's death is waited for less: no more is lost than that. */
static void note_death(struct apportion_ledger_slot *slot, const struct ap_dead *dead)
{
    uint64_t not_yet = 0;
    if (is_same(slot, dead))
        (void)atomic_compare_exchange_strong(&slot->died, &not_yet, ap_boot_ns());
}

static bool lingers(const struct ap_ledger *ledger, int fd, uint32_t index, uint32_t pid)
{
    struct apportion_ledger_slot *slot = &ledger->slots[index];
    uint64_t namespace = atomic_load(&slot->namespace);
    return ap_driver_lists && pid != 0 && pid != ap_pid() && atomic_load(&slot->used) != 0 &&
           atomic_load(&slot->object) == 0 && namespace != 0 && namespace == ap_pid_namespace() &&
           !has_lingered(slot) && !is_used_again(ledger, fd, index, pid, namespace) &&
           ap_driver_lists(ledger, pid);
}

enum ap_owner ap_ledger_owner(const struct ap_ledger *ledger, int fd, uint32_t index,
                              struct ap_dead *dead)
{
    *dead = look(&ledger->slots[index]);
    if (ap_byte_is_locked(fd, byte_of(index)))
        return AP_OWNER_LIVES;
    if (!lingers(ledger, fd, index, dead->pid))
        return AP_OWNER_GONE;
    note_death(&ledger->slots[index], dead);
    return AP_OWNER_LINGERS;
}
