/* When a GPU's shares may run: their slots, put together and laid on CLOCK_MONOTONIC. Pure: no
 * clock, no memory but what it is given. Times are nanoseconds. */
#ifndef AP_CUDA_CALENDAR_H
#define AP_CUDA_CALENDAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "apportion/schedule.h"

#define AP_SPANS 128u /* of a calendar; what several shares have beyond is not used */

struct ap_span {
    uint64_t from, to; /* from the beginning of the period */
};

struct ap_spans {
    uint32_t count;
    uint64_t total;    /* time that they cover */
    struct ap_span span[AP_SPANS];
};

struct ap_calendar {
    uint64_t period;
    uint64_t guest_until;
    struct ap_spans own; /* the shares' slots, in order, those that touch made one */
    struct ap_spans all; /* those and the guest slots */
};

/* A stretch of time without a change. */
struct ap_window {
    bool open;     /* work may run */
    uint64_t from; /* when it began; 0 where it is not open */
    uint64_t to;   /* when it ends */
};

/* Puts the slots of several shares together. Those whose period is not the first one's, which may
 * be so for a moment while the plugin changes it, are left out. */
void ap_calendar_make(struct ap_calendar *calendar, const struct apportion_schedule_state *states,
                      size_t count);

/* The stretch that `now` lies in. */
struct ap_window ap_calendar_at(const struct ap_calendar *calendar, uint64_t now);

/* How much of [from, to) is the shares' own time. */
uint64_t ap_calendar_own(const struct ap_calendar *calendar, uint64_t from, uint64_t to);

/* How much of [from, to) work was allowed to run in. */
uint64_t ap_calendar_allowed(const struct ap_calendar *calendar, uint64_t from, uint64_t to);

#endif
