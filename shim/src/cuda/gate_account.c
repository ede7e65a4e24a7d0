/* The share's account: what it was given too little, what it ran too much, and what its processes
 * have queued. All processes of the share keep it together, in the ledger. */
#include <stdatomic.h>

#include "../common/sys.h"
#include "gate.h"
#include "gate_state.h"

#define IN_FUTURE (1000 * AP_MILLI) /* no honest process writes a time as far ahead */
#define OTHERS_EVERY (250 * AP_MICRO)
#define LONG_CALL (200 * AP_MICRO) /* a launch takes some 4 us */

struct apportion_ledger_cores *ap_gate_cores(const struct ap_gate *gate)
{
    unsigned char *head = (unsigned char *)gate->gpu->shares[0]->ledger.head;
    return (struct apportion_ledger_cores *)(head + APPORTION_LEDGER_CORES_OFFSET);
}

int64_t ap_gate_carry(const struct ap_gate *gate)
{
    int64_t carry = atomic_load_explicit(&ap_gate_cores(gate)->carry_ns, memory_order_relaxed);
    return ap_carry_after(carry, 0, gate->calendar.own.total);
}

static void change_carry(struct ap_gate *gate, int64_t change)
{
    _Atomic int64_t *carry = &ap_gate_cores(gate)->carry_ns;
    int64_t before = atomic_load_explicit(carry, memory_order_relaxed), after;
    do {
        after = ap_carry_after(before, change, gate->calendar.own.total);
    } while (!atomic_compare_exchange_weak_explicit(carry, &before, after, memory_order_relaxed,
                                                    memory_order_relaxed));
}

/* Takes the time from `from` to `to` for this process to account for, as far as no other one of the
 * share has it already. Returns where it begins. */
static uint64_t claim(_Atomic uint64_t *until, uint64_t from, uint64_t to)
{
    uint64_t before = atomic_load_explicit(until, memory_order_relaxed);
    for (;;) {
        uint64_t claimed = before > to + IN_FUTURE ? 0 : before;
        if (claimed >= to)
            return to;
        if (atomic_compare_exchange_weak_explicit(until, &before, to, memory_order_relaxed,
                                                  memory_order_relaxed))
            return claimed > from ? claimed : from;
    }
}

/* Time after the slots is paid back, by what it took from their owners. */
static void count_overrun(struct ap_gate *gate, const struct ap_mark *mark, uint64_t at)
{
    struct apportion_ledger_cores *cores = ap_gate_cores(gate);
    uint64_t took = at - gate->from;
    uint64_t outside = took - ap_calendar_allowed(&gate->calendar, gate->from, at);
    /* Beside other processes of the share it was slowed by those. */
    bool known = gate->others_last <= gate->from &&
                 ap_estimate_is_clean(&gate->estimates, mark->items, mark->count);
    ap_estimate_measured(&gate->estimates, mark->items, mark->count, outside == 0);
    if (outside == 0)
        return;
    uint64_t paid = ap_overrun_paid(took, known ? mark->work : 0, outside);
    uint64_t from = claim(&cores->taken_until_ns, gate->from, at);
    uint64_t mine = (at - from) - ap_calendar_allowed(&gate->calendar, from, at);
    atomic_fetch_add_explicit(&cores->overrun_ns, mine, memory_order_relaxed);
    change_carry(gate, -(int64_t)(mine < paid ? mine : paid));
}

/* A call that takes long, since the driver loads the kernel first, gives the GPU its work last. */
void ap_gate_begun(struct ap_gate *gate, const struct ap_pass *pass)
{
    ap_lock(&gate->lock);
    uint64_t now = ap_now_ns();
    if (now > pass->began + LONG_CALL && now > gate->from && gate->work == pass->time)
        gate->from = now;
    ap_unlock(&gate->lock);
}

/* An anchor was reached: before that the GPU was not the share's. */
static void begin_at(struct ap_gate *gate, uint64_t at)
{
    if (at > gate->from)
        gate->from = at;
}

static void account(struct ap_gate *gate, const struct ap_mark *mark, uint64_t at)
{
    if (at > gate->from) {
        uint64_t took = at - gate->from;
        count_overrun(gate, mark, at);
        ap_estimate_learn(&gate->estimates, mark->items, mark->count, took);
        atomic_fetch_add_explicit(&ap_gate_cores(gate)->used_ns, took, memory_order_relaxed);
        gate->from = at;
    } else { /* it took less than can be seen */
        ap_estimate_assume(&gate->estimates, mark->items, mark->count, AP_MICRO);
    }
    gate->work -= mark->work < gate->work ? mark->work : gate->work;
}

void ap_gate_done(struct ap_gate *gate, struct ap_mark *mark, uint64_t at)
{
    if (mark->count == 0)
        begin_at(gate, at);
    else
        account(gate, mark, at);
    gate->progress = at;
    mark->done = true;
}

void ap_gate_count_idle(struct ap_gate *gate, uint64_t now)
{
    uint64_t from = gate->idle > gate->from ? gate->idle : gate->from;
    if (gate->idle == 0 || gate->head != gate->tail ||
        ap_work_left(gate->from, gate->work, now, false) > 0)
        return;
    if (gate->from + gate->work > from)
        from = gate->from + gate->work;
    if (gate->others_last > from)
        from = gate->others_last;
    gate->idle = now;
    if (from >= now || ap_calendar_own(&gate->calendar, from, now) < AP_MICRO)
        return;
    from = claim(&ap_gate_cores(gate)->given_until_ns, from, now);
    change_carry(gate, (int64_t)ap_calendar_own(&gate->calendar, from, now));
}

/* A slot whose owner died says what it had queued for no longer than that would have taken. */
static void look_at_others(struct ap_gate *gate, const struct ap_ledger *ledger, uint64_t now)
{
    const struct apportion_ledger_slot *mine = atomic_load(&ledger->mine);
    uint32_t index = atomic_load(&ledger->mine_index), top = atomic_load(&ledger->head->top);
    for (uint32_t i = 0; i < top && i < APPORTION_LEDGER_SLOT_COUNT; i++) {
        const struct apportion_ledger_slot *slot = &ledger->slots[i];
        uint64_t until = atomic_load_explicit(&slot->busy_until_ns, memory_order_relaxed);
        if ((mine && i == index) || until > now + 4 * IN_FUTURE)
            continue;
        if (until > gate->others_last)
            gate->others_last = until;
    }
}

uint64_t ap_gate_others_left(struct ap_gate *gate, uint64_t now, bool exactly)
{
    if (exactly || now - gate->others_at >= OTHERS_EVERY) {
        gate->others_at = now;
        gate->others_last = 0;
        for (uint32_t i = 0; i < gate->gpu->share_count; i++)
            look_at_others(gate, &gate->gpu->shares[i]->ledger, now);
    }
    return gate->others_last > now ? gate->others_last - now : 0;
}

void ap_gate_publish(struct ap_gate *gate)
{
    struct apportion_ledger_slot *mine = atomic_load_explicit(
        &gate->gpu->shares[0]->ledger.mine, memory_order_acquire);
    if (mine)
        atomic_store_explicit(&mine->busy_until_ns, gate->from + gate->work, memory_order_relaxed);
}
