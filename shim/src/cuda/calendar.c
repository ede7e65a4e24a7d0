#include "calendar.h"

#define ENDLESS 16u /* periods: a stretch without an end is looked at again then */

static void insert(struct ap_spans *spans, struct ap_span span)
{
    uint32_t at = spans->count;
    if (at == AP_SPANS)
        return;
    for (; at > 0 && spans->span[at - 1].from > span.from; at--)
        spans->span[at] = spans->span[at - 1];
    spans->span[at] = span;
    spans->count++;
}

static void add(struct ap_spans *spans, const struct apportion_slot_time *slots, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        insert(spans,
               (struct ap_span){slots[i].start_ns, slots[i].start_ns + slots[i].length_ns});
}

/* Makes one of those that touch or overlap. */
static void join(struct ap_spans *spans)
{
    uint32_t kept = 0;
    for (uint32_t i = 1; i < spans->count; i++) {
        struct ap_span *last = &spans->span[kept], *next = &spans->span[i];
        if (next->from > last->to)
            spans->span[++kept] = *next;
        else if (next->to > last->to)
            last->to = next->to;
    }
    spans->count = spans->count ? kept + 1 : 0;
    spans->total = 0;
    for (uint32_t i = 0; i < spans->count; i++)
        spans->total += spans->span[i].to - spans->span[i].from;
}

void ap_calendar_make(struct ap_calendar *calendar, const struct apportion_schedule_state *states,
                      size_t count)
{
    calendar->period = states[0].period_ns;
    calendar->guest_until = 0;
    calendar->own.count = 0;
    for (size_t i = 0; i < count; i++)
        if (states[i].period_ns == calendar->period)
            add(&calendar->own, states[i].own, states[i].own_count);
    join(&calendar->own);
    calendar->all = calendar->own;
    for (size_t i = 0; i < count; i++) {
        if (states[i].period_ns != calendar->period || states[i].guest_count == 0)
            continue;
        add(&calendar->all, states[i].guest, states[i].guest_count);
        if (!calendar->guest_until || states[i].guest_until_ns < calendar->guest_until)
            calendar->guest_until = states[i].guest_until_ns;
    }
    join(&calendar->all);
}

static struct ap_window open_at(const struct ap_spans *spans, uint64_t period, uint32_t at,
                                uint64_t base)
{
    const struct ap_span *span = &spans->span[at], *last = &spans->span[spans->count - 1];
    struct ap_window window = {true, base + span->from, base + span->to};
    bool around = spans->span[0].from == 0 && last->to == period;
    if (spans->total >= period)
        window.to = base + ENDLESS * period;
    else if (around && at == spans->count - 1)
        window.to += spans->span[0].to;
    if (spans->total < period && around && at == 0 && base >= period)
        window.from = base - period + last->from;
    return window;
}

static struct ap_window look(const struct ap_spans *spans, uint64_t period, uint64_t now)
{
    uint64_t place = now % period, base = now - place;
    for (uint32_t i = 0; i < spans->count; i++) {
        if (place < spans->span[i].from)
            return (struct ap_window){false, 0, base + spans->span[i].from};
        if (place < spans->span[i].to)
            return open_at(spans, period, i, base);
    }
    return (struct ap_window){false, 0, base + period + spans->span[0].from};
}

/* Guest slots end with guest_until, in the middle if need be; own ones do not. */
struct ap_window ap_calendar_at(const struct ap_calendar *calendar, uint64_t now)
{
    struct ap_window own = look(&calendar->own, calendar->period, now);
    if (now >= calendar->guest_until)
        return own;
    struct ap_window all = look(&calendar->all, calendar->period, now);
    if (all.to <= calendar->guest_until)
        return all;
    if (!all.open)
        return own;
    all.to = calendar->guest_until;
    if (own.open && own.to > all.to)
        all.to = own.to;
    return all;
}

static uint64_t overlap(uint64_t from, uint64_t to, uint64_t other_from, uint64_t other_to)
{
    uint64_t first = from > other_from ? from : other_from, end = to < other_to ? to : other_to;
    return first < end ? end - first : 0;
}

static uint64_t within(const struct ap_spans *spans, uint64_t period, uint64_t from, uint64_t to)
{
    if (from >= to)
        return 0;
    uint64_t sum = (to - from) / period * spans->total;
    uint64_t first = from % period, end = first + (to - from) % period;
    for (uint32_t i = 0; i < spans->count; i++) {
        const struct ap_span *span = &spans->span[i];
        sum += overlap(first, end, span->from, span->to) +
               overlap(first, end, span->from + period, span->to + period);
    }
    return sum;
}

uint64_t ap_calendar_own(const struct ap_calendar *calendar, uint64_t from, uint64_t to)
{
    return within(&calendar->own, calendar->period, from, to);
}

uint64_t ap_calendar_allowed(const struct ap_calendar *calendar, uint64_t from, uint64_t to)
{
    uint64_t own = ap_calendar_own(calendar, from, to);
    uint64_t end = to < calendar->guest_until ? to : calendar->guest_until;
    return own + within(&calendar->all, calendar->period, from, end) -
           ap_calendar_own(calendar, from, end);
}
