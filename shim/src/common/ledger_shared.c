/* Charges that several processes of a share hold together: memory that one made and others opened.
 * Each object has a slot; who holds it has the slot's byte locked for reading, through a mapping of
 * its own that is unmapped to let go. So the kernel counts the holders, whichever of them dies or
 * lets go first, and a slot that nobody holds is reaped like a dead process's. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>

#include "ledger.h"
#include "sys.h"

#define RETIRED UINT64_MAX /* found by no number that is given out */
#define SLOTS_FOR_PROCESSES 256 /* what is in common must not keep a process from joining */

static int64_t byte_of(uint32_t index)
{
    return APPORTION_LEDGER_LOCK_SLOTS + (int64_t)index;
}

/* Takes `bytes` out of what this process was charged: all or nothing. The total stays. */
static bool take_out(struct apportion_ledger_slot *mine, uint64_t bytes)
{
    uint64_t used = atomic_load(&mine->used);
    do {
        if (used < bytes)
            return false;
    } while (!atomic_compare_exchange_weak(&mine->used, &used, used - bytes));
    return true;
}

/* The slot is ours alone. In between the bytes are in the total and in no slot: seq says so. */
static bool move(struct apportion_ledger_slot *mine, struct apportion_ledger_slot *slot,
                 uint64_t object, uint64_t bytes)
{
    atomic_fetch_add(&mine->seq, APPORTION_LEDGER_SEQ_BEGIN);
    atomic_fetch_add(&slot->seq, APPORTION_LEDGER_SEQ_BEGIN);
    bool moved = take_out(mine, bytes);
    if (moved) {
        atomic_fetch_add(&slot->used, bytes);
        atomic_store(&slot->object, object);
    }
    atomic_fetch_sub(&slot->seq, 1);
    atomic_fetch_sub(&mine->seq, 1);
    return moved;
}

int ap_ledger_share(struct ap_ledger *ledger, uint64_t object, uint64_t bytes,
                    struct apportion_ledger_slot **slot)
{
    struct apportion_ledger_slot *mine = atomic_load_explicit(&ledger->mine, memory_order_acquire);
    if (!mine || atomic_load(&mine->used) < bytes)
        return -ENOENT;
    int fd = ap_ledger_reopen(ledger);
    if (fd < 0)
        return fd;
    int index = ap_ledger_take_slot(ledger, fd, slot);
    int refused = 0;
    if (index >= (int)(APPORTION_LEDGER_SLOT_COUNT - SLOTS_FOR_PROCESSES))
        refused = -ENOSPC;
    else if (index >= 0 && !move(mine, *slot, object, bytes))
        refused = -ENOENT;
    if (refused) {
        ap_byte_unlock(fd, byte_of((uint32_t)index));
        ap_ledger_unmap_slot(*slot);
        index = refused;
    }
    if (index >= 0)
        (void)ap_byte_share_try(fd, byte_of((uint32_t)index));
    ap_close(fd);
    return index;
}

static bool is(const struct apportion_ledger_slot *slot, uint64_t object)
{
    return atomic_load(&slot->object) == object && atomic_load(&slot->used) > 0;
}

/* With the byte locked nobody reaps the slot; so what it is then it stays. */
static int hold(int fd, uint32_t index, uint64_t object, struct apportion_ledger_slot **slot)
{
    *slot = ap_ledger_map_slot(fd, index);
    if (!*slot)
        return -ENOMEM;
    if (ap_byte_share_try(fd, byte_of(index)) == 0) {
        if (is(*slot, object))
            return (int)index;
        ap_byte_unlock(fd, byte_of(index));
    }
    ap_ledger_unmap_slot(*slot);
    return -ENOENT;
}

int ap_ledger_hold(struct ap_ledger *ledger, uint64_t object, struct apportion_ledger_slot **slot)
{
    uint32_t top = atomic_load(&ledger->head->top);
    int found = -ENOENT;
    for (uint32_t index = 0; index < top && index < APPORTION_LEDGER_SLOT_COUNT; index++) {
        if (!is(&ledger->slots[index], object))
            continue;
        int fd = ap_ledger_reopen(ledger);
        if (fd < 0)
            return fd;
        found = hold(fd, index, object, slot);
        ap_close(fd);
        if (found >= 0)
            break;
    }
    return found;
}

void ap_ledger_retire(struct apportion_ledger_slot *slot)
{
    atomic_store(&slot->object, RETIRED);
}

void ap_ledger_let_go(struct ap_ledger *ledger, int index, struct apportion_ledger_slot *slot)
{
    int64_t byte = byte_of((uint32_t)index);
    ap_ledger_unmap_slot(slot);
    int fd = ap_ledger_reopen(ledger);
    if (fd < 0)
        return; /* the next sweep finds it */
    if (ap_byte_lock_try(fd, byte) == 0) {
        ap_ledger_reap(ledger->head, &ledger->slots[index]);
        ap_byte_unlock(fd, byte);
    }
    ap_close(fd);
}
