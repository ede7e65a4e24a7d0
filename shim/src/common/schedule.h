/* A share's schedule as a process uses it; the layout is in apportion/schedule.h. */
#ifndef AP_SCHEDULE_H
#define AP_SCHEDULE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "apportion/schedule.h"

/* Maps the schedule that is open as `fd`, to be read only. 0, or a negative error number: -EPROTO
 * for a file that is no schedule of this version, or has no good state. */
int ap_schedule_open(const struct apportion_schedule **schedule, int fd);

void ap_schedule_close(const struct apportion_schedule **schedule);

/* Copies the state in force, whole. False: it is not a good one (see below); `out` is then
 * undefined. *generation: of the state that was copied. */
bool ap_schedule_read(const struct apportion_schedule *schedule,
                      struct apportion_schedule_state *out, uint64_t *generation);

/* Whether period and slots are as the layout demands. */
bool ap_schedule_is_good(const struct apportion_schedule_state *state);

static inline uint64_t ap_schedule_generation(const struct apportion_schedule *schedule)
{
    return atomic_load_explicit(&schedule->generation, memory_order_acquire);
}

#endif
