/* The gate's arithmetic: whether a launch may go, and what its GPU time was. Pure: no clock, no
 * memory but what it is given. Times are nanoseconds of CLOCK_MONOTONIC.
 *
 * A share's account is its carry: what it was given too little (above 0: its slot ended before the
 * next kernel would have fitted, so it lay idle) or has run too much (a kernel went on after the
 * slot). Both are bounded, so an old account is soon forgotten. */
#ifndef AP_CUDA_GATE_MATH_H
#define AP_CUDA_GATE_MATH_H

#include <stdbool.h>
#include <stdint.h>

#include "calendar.h"

#define AP_MICRO UINT64_C(1000)
#define AP_MILLI UINT64_C(1000000)
#define AP_DEBT_MAX (2000 * AP_MILLI) /* more than that is forgiven */
#define AP_UNKNOWN_NS (500 * AP_MICRO) /* what is assumed of work that was never measured */

struct ap_launch_question {
    struct ap_window window;
    uint64_t now;
    uint64_t left;     /* what is queued will take, beside what others do at the same time */
    uint64_t others;   /* what other processes of the share have queued will take */
    uint64_t estimate; /* the launch itself will take */
    int64_t carry;
    bool patient;      /* it has waited for whole slots: others go behind it now */
};

enum ap_launch_answer {
    AP_GO,
    AP_CLOSED,  /* it is not the share's time */
    AP_IN_DEBT, /* the share's time pays for what it ran too much */
    AP_NO_ROOM, /* it would go on after the slot */
    AP_DEEP,    /* enough is queued: what the estimates are worth shows when some of it is done */
};

/* *until: when to ask again at the latest. */
enum ap_launch_answer ap_launch_may(const struct ap_launch_question *question, uint64_t *until);

/* The account after `change`, which is in bounds; `most` is what it may have. */
int64_t ap_carry_after(int64_t carry, int64_t change, uint64_t most);

/* Work that was queued at `from` and takes `work` by its estimates: what is left of it at `now`, if
 * it is known to be unfinished. Work that is late is expected to take half as long again as it is
 * late. */
uint64_t ap_work_left(uint64_t from, uint64_t work, uint64_t now, bool unfinished);

/* Of the time that work took after its slot, what the share pays for. When it ran longer than it
 * does by itself (`by_itself`; 0: not known), it had to share the GPU with the slot's owner, at
 * most half and half. */
uint64_t ap_overrun_paid(uint64_t took, uint64_t by_itself, uint64_t outside);

#endif
