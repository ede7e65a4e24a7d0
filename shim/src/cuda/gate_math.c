#include "gate_math.h"

#define FED (1 * AP_MILLI)     /* queued, with which the GPU does not run dry while we look again */
#define SHALLOW (4 * AP_MILLI) /* may always be queued */
#define SMALL_DEBT (100 * AP_MICRO) /* is paid at the slot's end, where it costs no sleep */
#define LOOK (50 * AP_MICRO)

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* A kernel longer than the slot counts as one that fills most of it: it starts when the slot does,
 * and pays afterwards. "Most", since something else may have been a little quicker.
 *
 * Processes of a share take turns on the GPU as those of several do, and their estimates were
 * learnt so: what others have queued is in them already. Only the longest kernels go alone. */
static bool fits(const struct ap_launch_question *q)
{
    int64_t room = (int64_t)(q->window.to - q->now) + q->carry;
    uint64_t stretch = q->window.to - q->window.from, most = stretch - stretch / 8;
    uint64_t before = q->left + (q->estimate > most ? q->others : 0);
    return room > 0 && (q->patient ? 0 : before) + least(q->estimate, most) <= (uint64_t)room;
}

static bool is_deep(const struct ap_launch_question *q)
{
    uint64_t half = (q->window.to - q->now) / 2;
    uint64_t most = half > SHALLOW ? half : SHALLOW;
    return q->left > FED && q->left + q->estimate > most;
}

enum ap_launch_answer ap_launch_may(const struct ap_launch_question *q, uint64_t *until)
{
    *until = q->window.to;
    if (!q->window.open)
        return AP_CLOSED;
    if (q->carry < -(int64_t)SMALL_DEBT) {
        *until = least(q->window.to, q->now + q->left + (uint64_t)-q->carry);
        return AP_IN_DEBT;
    }
    if (!fits(q))
        return AP_NO_ROOM;
    if (q->patient || !is_deep(q))
        return AP_GO;
    *until = least(q->window.to, q->now + (q->left > FED + LOOK ? q->left - FED : LOOK));
    return AP_DEEP;
}

int64_t ap_carry_after(int64_t carry, int64_t change, uint64_t most)
{
    int64_t after;
    if (__builtin_add_overflow(carry, change, &after))
        after = change < 0 ? INT64_MIN : INT64_MAX;
    if (after > (int64_t)most)
        return (int64_t)most;
    return after < -(int64_t)AP_DEBT_MAX ? -(int64_t)AP_DEBT_MAX : after;
}

uint64_t ap_work_left(uint64_t from, uint64_t work, uint64_t now, bool unfinished)
{
    uint64_t passed = now > from ? now - from : 0;
    if (passed < work)
        return work - passed;
    return unfinished ? (passed - work) / 2 : 0;
}

uint64_t ap_overrun_paid(uint64_t took, uint64_t by_itself, uint64_t outside)
{
    uint64_t slowed = by_itself && took > by_itself ? took - by_itself : 0;
    return outside - least(slowed, outside / 2);
}
