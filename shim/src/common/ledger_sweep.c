/* Taking over what dead processes left, and the argument for the ledger as a whole.
 *
 * Names: total = head.total. For every slot: used, seq (operations begun, operations in flight).
 *   SUM   sum of `used` over all slots.
 *   PEND  what operations in flight have added to total and not yet to a `used`, or have taken
 *         from a `used` and not yet from total. Each part is >= 0 by the order of the steps:
 *           reserve: seq begins; total += n, only if it stays within the limit; used += n; seq ends
 *           release: seq begins; used -= n; total -= n; seq ends
 *           reap:    seq begins; n = used, used = 0; total -= n; seq ends
 *   GHOST what is in total for no reason: the PEND of operations whose process died in the middle.
 * Invariant:  total = SUM + PEND + GHOST, all >= 0. So total is never too small, a grant within
 * the limit by total is within the limit by truth, and no step waits for another process.
 * A death at any instruction only moves PEND to GHOST.
 *
 * Two things shrink what the dead left.
 *
 * 1. Reap. A slot whose byte nobody has locked has a dead owner (or none): all its threads are
 *    gone, as the lock lives as long as their memory. The reaper locks the byte, so there is one
 *    reaper and no new owner, counts `dirty` up, and moves the slot's `used` out of total. It
 *    needs no quiet moment, so busy peers cannot put it off. If it dies in the middle, the byte is
 *    free again and the next reaper goes on; what was in between became GHOST, and `dirty` is up.
 *
 * 2. Recount, when `dirty` has moved since the last good one: finds GHOST and removes it.
 *      a  read seq and used of every slot: none in flight, S = sum of used
 *      b  T = total
 *      c  read every seq again: all as in a; `top` still the same
 *      d  compare and swap total from T to S
 *    seq only grows (it outlives changes of owner), so by c no slot was in any operation from its
 *    read in a to its read in c, and b lies in between for all of them: at b SUM = S, PEND = 0,
 *    hence GHOST = T - S. Slots at or above `top` have never been used; a slot is used only after
 *    `top` was raised above it, so an unchanged `top` says that they were empty at b.
 *    If d succeeds, total is T again at d: SUM + PEND + GHOST(d) = T = S + GHOST(b). GHOST can
 *    only have grown (deaths), for only a recount shrinks it and there is one at a time (below).
 *    So SUM + PEND <= S at d, and setting total to S keeps the invariant, with
 *    GHOST = GHOST(d) - GHOST(b) >= 0. That other operations moved total away from T and back
 *    between b and d does no harm: the argument needs its value at b and d only.
 *    Two recounts at once would do harm (both remove the same GHOST), so a recount holds the lock
 *    on byte LOCK_SWEEP from before b until after d. Nobody waits for that lock: who finds it
 *    taken leaves the recount to its holder. The kernel frees it if the holder dies, and a dead
 *    holder makes no late swap.
 *    T must be read between a and c. Read before a, a release before and a reserve after the scan
 *    could bring total back to T and S would be too small.
 *
 * A slot that several processes hold (ledger_shared.c) is written under the write lock alone, by
 * who makes it or reaps it, so all of the above holds for it as for a process's: its owner is dead
 * when nobody has its byte locked. Making it moves bytes: both slots' seq begins; own used -= n,
 * n goes to PEND; the new slot's used += n; both end.
 *
 * What remains: a process stopped (not killed) inside the some ten instructions of an operation
 * puts recounts off, one stopped while it holds a byte puts that byte's work off, until it goes
 * on or is killed. Peers allocate meanwhile, within a total that is too large by the GHOST. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>

#include "ledger.h"
#include "log.h"
#include "sys.h"

#define RECOUNT_TRIES 64

static uint64_t in_flight(uint64_t seq)
{
    return seq & APPORTION_LEDGER_SEQ_BUSY_MASK;
}

void ap_ledger_reap(struct apportion_ledger_header *head, struct apportion_ledger_slot *slot)
{
    uint64_t seq = atomic_load(&slot->seq);
    if (atomic_load(&slot->used) != 0 || in_flight(seq))
        atomic_fetch_add(&head->dirty, 1);
    /* One operation, ours, is in flight from here; the dead owner's are no more. */
    atomic_store(&slot->seq, (seq & ~APPORTION_LEDGER_SEQ_BUSY_MASK) + APPORTION_LEDGER_SEQ_BEGIN);
    uint64_t left = atomic_exchange(&slot->used, 0);
    if (left)
        atomic_fetch_sub(&head->total, left);
    atomic_store(&slot->pid, 0);
    atomic_store(&slot->died, 0);
    atomic_store(&slot->object, 0);
    atomic_fetch_sub(&slot->seq, 1);
}

static bool needs_reaping(struct apportion_ledger_slot *slot)
{
    return atomic_load(&slot->pid) != 0 || atomic_load(&slot->used) != 0 ||
           in_flight(atomic_load(&slot->seq));
}

static uint32_t slots_ever_used(const struct apportion_ledger_header *head)
{
    uint32_t top = atomic_load(&head->top);
    return top < APPORTION_LEDGER_SLOT_COUNT ? top : APPORTION_LEDGER_SLOT_COUNT;
}

static void reap_the_dead(struct ap_ledger *ledger, int fd)
{
    uint64_t lingering = 0;
    uint32_t top = slots_ever_used(ledger->head);
    uint32_t own = atomic_load(&ledger->mine) ? atomic_load(&ledger->mine_index) : UINT32_MAX;
    for (uint32_t index = 0; index < top; index++) {
        struct ap_dead dead;
        if (index == own || !needs_reaping(&ledger->slots[index]))
            continue;
        enum ap_owner owner = ap_ledger_owner(ledger, fd, index, &dead);
        if (owner == AP_OWNER_LINGERS)
            lingering += atomic_load(&ledger->slots[index].used);
        else if (owner == AP_OWNER_GONE &&
                 ap_ledger_lock_dead(ledger, fd, index, &dead) == 0) {
            ap_ledger_reap(ledger->head, &ledger->slots[index]);
            ap_byte_unlock(fd, APPORTION_LEDGER_LOCK_SLOTS + (int64_t)index);
        }
    }
    atomic_store(&ledger->lingering, lingering);
}

/* Steps a to d of the head of this file; `seen` is scratch for one seq per slot. */
static bool recount_once(struct ap_ledger *ledger, uint64_t *seen)
{
    struct apportion_ledger_header *head = ledger->head;
    uint32_t top = slots_ever_used(head);
    uint64_t sum = 0;

    for (uint32_t index = 0; index < top; index++) {
        seen[index] = atomic_load(&ledger->slots[index].seq);
        if (in_flight(seen[index]))
            return false;
        sum += atomic_load(&ledger->slots[index].used);
    }
    uint64_t total = atomic_load(&head->total);
    for (uint32_t index = 0; index < top; index++)
        if (atomic_load(&ledger->slots[index].seq) != seen[index])
            return false;
    if (slots_ever_used(head) != top)
        return false;
    if (total == sum)
        return true;
    return atomic_compare_exchange_strong(&head->total, &total, sum);
}

static void recount(struct ap_ledger *ledger, int fd)
{
    uint64_t seen[APPORTION_LEDGER_SLOT_COUNT];
    if (ap_byte_lock_try(fd, APPORTION_LEDGER_LOCK_SWEEP) != 0)
        return;
    uint32_t dirty = atomic_load(&ledger->head->dirty);
    for (int tries = 0; tries < RECOUNT_TRIES; tries++) {
        if (recount_once(ledger, seen)) {
            atomic_store(&ledger->head->clean, dirty);
            break;
        }
    }
    ap_byte_unlock(fd, APPORTION_LEDGER_LOCK_SWEEP);
}

void ap_ledger_sweep(struct ap_ledger *ledger)
{
    int fd = ap_ledger_reopen(ledger);
    if (fd < 0) {
        ap_log("%s: cannot sweep: error %d", ledger->path, -fd);
        return;
    }
    reap_the_dead(ledger, fd);
    if (atomic_load(&ledger->head->dirty) != atomic_load(&ledger->head->clean))
        recount(ledger, fd);
    ap_close(fd);
    atomic_store(&ledger->swept_ms, ap_coarse_ms());
}
