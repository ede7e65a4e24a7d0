/* Charging and giving back. See ledger_sweep.c for why the order of the steps is what it is. */
#include "ledger.h"

#include <stdatomic.h>

static void begin(struct apportion_ledger_slot *slot)
{
    atomic_fetch_add(&slot->seq, APPORTION_LEDGER_SEQ_BEGIN);
}

static void end(struct apportion_ledger_slot *slot)
{
    atomic_fetch_sub(&slot->seq, 1);
}

static void note_peak(struct apportion_ledger_header *head, uint64_t total)
{
    uint64_t peak = atomic_load_explicit(&head->peak, memory_order_relaxed);
    bool done = peak >= total;
    while (!done)
        done = atomic_compare_exchange_weak(&head->peak, &peak, total) || peak >= total;
}

/* Adds between `least` and `most` bytes to the total, as many as fit; 0 when `least` does not. */
static uint64_t grow_total(struct apportion_ledger_header *head, uint64_t least, uint64_t most,
                           uint64_t limit)
{
    uint64_t total = atomic_load(&head->total), grant;
    do {
        uint64_t room = total < limit ? limit - total : 0;
        if (room < least)
            return 0;
        grant = room < most ? room : most;
    } while (!atomic_compare_exchange_weak(&head->total, &total, total + grant));
    note_peak(head, total + grant);
    return grant;
}

static uint64_t reserve(struct ap_ledger *ledger, uint64_t least, uint64_t most, uint64_t limit)
{
    struct apportion_ledger_slot *mine = atomic_load_explicit(&ledger->mine, memory_order_acquire);
    begin(mine);
    uint64_t grant = grow_total(ledger->head, least, most, limit);
    if (grant)
        atomic_fetch_add(&mine->used, grant);
    end(mine);
    return grant;
}

bool ap_ledger_reserve(struct ap_ledger *ledger, uint64_t bytes, uint64_t limit)
{
    return bytes == 0 || reserve(ledger, bytes, bytes, limit) == bytes;
}

uint64_t ap_ledger_reserve_part(struct ap_ledger *ledger, uint64_t bytes, uint64_t limit)
{
    return bytes == 0 ? 0 : reserve(ledger, 1, bytes, limit);
}

uint64_t ap_ledger_release(struct ap_ledger *ledger, uint64_t bytes)
{
    struct apportion_ledger_slot *mine = atomic_load_explicit(&ledger->mine, memory_order_acquire);
    if (!mine || bytes == 0)
        return 0;
    begin(mine);
    uint64_t used = atomic_load(&mine->used), back;
    do {
        back = used < bytes ? used : bytes;
    } while (!atomic_compare_exchange_weak(&mine->used, &used, used - back));
    if (back)
        atomic_fetch_sub(&ledger->head->total, back);
    end(mine);
    return back;
}
