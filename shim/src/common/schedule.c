#include "schedule.h"

#include <errno.h>
#include <string.h>

#include "sys.h"

#define PERIOD_MAX (UINT64_C(1) << 56) /* so that no sum of times overflows */
#define TRIES 16 /* the writer writes some times a second at most */

static bool are_good(const struct apportion_slot_time *slots, uint32_t count, uint64_t period)
{
    uint64_t from = 0;
    if (count > APPORTION_SCHEDULE_SLOTS)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (slots[i].start_ns < from || slots[i].start_ns >= period || slots[i].length_ns == 0 ||
            slots[i].length_ns > period - slots[i].start_ns)
            return false;
        from = slots[i].start_ns + slots[i].length_ns;
    }
    return true;
}

bool ap_schedule_is_good(const struct apportion_schedule_state *state)
{
    return state->period_ns > 0 && state->period_ns <= PERIOD_MAX && state->own_count > 0 &&
           are_good(state->own, state->own_count, state->period_ns) &&
           are_good(state->guest, state->guest_count, state->period_ns);
}

/* Word by word, since the writer may be at it. */
static void copy(struct apportion_schedule_state *out,
                 const struct apportion_schedule_state *state)
{
    const uint64_t *from = (const uint64_t *)(const void *)state;
    for (size_t i = 0; i < sizeof *state / sizeof *from; i++) {
        uint64_t word = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        memcpy((unsigned char *)out + i * sizeof word, &word, sizeof word);
    }
}

/* The copy that is being written is never the one in force, so what was read is whole if the
 * generation has not moved by two meanwhile; it is enough to know that it has not moved. */
bool ap_schedule_read(const struct apportion_schedule *schedule,
                      struct apportion_schedule_state *out, uint64_t *generation)
{
    for (int i = 0; i < TRIES; i++) {
        *generation = ap_schedule_generation(schedule);
        copy(out, &schedule->state[*generation & 1]);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&schedule->generation, memory_order_relaxed) == *generation)
            return *generation != 0 && ap_schedule_is_good(out);
    }
    return false;
}

static bool header_is_good(const struct apportion_schedule *schedule)
{
    return schedule->magic == APPORTION_SCHEDULE_MAGIC &&
           schedule->version == APPORTION_SCHEDULE_VERSION &&
           schedule->size == APPORTION_SCHEDULE_SIZE;
}

int ap_schedule_open(const struct apportion_schedule **schedule, int fd)
{
    struct apportion_schedule_state state;
    struct stat about;
    uint64_t generation;
    int error = ap_fstat(fd, &about);
    if (error < 0)
        return error;
    if (about.st_size != APPORTION_SCHEDULE_SIZE)
        return -EPROTO;
    const struct apportion_schedule *at = ap_map_to_read(fd, APPORTION_SCHEDULE_SIZE);
    if (!at)
        return -ENOMEM;
    if (!header_is_good(at) || !ap_schedule_read(at, &state, &generation)) {
        ap_unmap((void *)(uintptr_t)at, APPORTION_SCHEDULE_SIZE);
        return -EPROTO;
    }
    *schedule = at;
    return 0;
}

void ap_schedule_close(const struct apportion_schedule **schedule)
{
    ap_unmap((void *)(uintptr_t)*schedule, APPORTION_SCHEDULE_SIZE);
    *schedule = NULL;
}
