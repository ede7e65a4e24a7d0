/* The `schedule` file of a share: when its kernels may run on the GPU. THE layout; the plugin
 * writes it, the shim reads it, and maps it read-only for as long as the process lives.
 *
 * Time division on the clock: a GPU has a period, and each share with less than all cores owns
 * slots of it that no other share's overlap. A slot is at the same place of every period; the
 * period that holds CLOCK_MONOTONIC time t began at t - t % period_ns, so nobody has to agree on
 * a beginning. Shares of one GPU have the same period.
 *
 * The writer may change it at any time, also while programs run: it fills the copy that is not in
 * force, then raises `generation`, whose lowest bit says which copy is in force. A reader copies
 * that one and looks at `generation` again: unchanged means that it read one whole state. A writer
 * that dies anywhere leaves the old state or the new one.
 */
#ifndef APPORTION_SCHEDULE_H
#define APPORTION_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#define APPORTION_SCHEDULE_NAME "schedule"
#define APPORTION_SCHEDULE_MAGIC UINT64_C(0x314443534c505041) /* the bytes "APPLSCD1" */
#define APPORTION_SCHEDULE_VERSION 1u
#define APPORTION_SCHEDULE_SIZE 4096u
#define APPORTION_SCHEDULE_SLOTS 32u

struct apportion_slot_time {
    uint64_t start_ns;  /* from the beginning of the period; start + length <= period */
    uint64_t length_ns; /* above 0 */
};

/* Slots ascend by start and do not overlap. */
struct apportion_schedule_state {
    uint64_t period_ns;      /* above 0 */
    uint64_t guest_until_ns; /* CLOCK_MONOTONIC until which the guest slots may be used as well */
    uint32_t own_count;      /* slots of the share itself; at least 1 */
    uint32_t guest_count;    /* slots of others that do not use them now; 0 unless policy burst */
    uint64_t reserved;       /* zero */
    struct apportion_slot_time own[APPORTION_SCHEDULE_SLOTS];
    struct apportion_slot_time guest[APPORTION_SCHEDULE_SLOTS];
};

struct apportion_schedule {
    uint64_t magic;                       /* APPORTION_SCHEDULE_MAGIC */
    uint32_t version;                     /* APPORTION_SCHEDULE_VERSION */
    uint32_t size;                        /* APPORTION_SCHEDULE_SIZE */
    _Atomic uint64_t generation;          /* states written so far; never 0 in a file in use */
    uint64_t reserved[5];                 /* zero */
    struct apportion_schedule_state state[2]; /* in force: state[generation & 1] */
};

_Static_assert(offsetof(struct apportion_schedule, state) == 64, "schedule header");
_Static_assert(sizeof(struct apportion_schedule_state) == 1056, "schedule state");
_Static_assert(sizeof(struct apportion_schedule) <= APPORTION_SCHEDULE_SIZE, "schedule");

#endif
