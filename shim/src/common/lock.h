/* A lock of one word for the threads of one process; all zero is unlocked, so memory that a fork
 * wipes is a set of free locks in the child, whatever the parent's other threads held. */
#ifndef AP_LOCK_H
#define AP_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ap_lock {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and somebody waits */
};

void ap_lock_wait(struct ap_lock *lock);
void ap_lock_wake(struct ap_lock *lock);

static inline bool ap_lock_try(struct ap_lock *lock)
{
    uint32_t expected = 0;
    return atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void ap_lock(struct ap_lock *lock)
{
    if (!ap_lock_try(lock))
        ap_lock_wait(lock);
}

static inline bool ap_try_lock(struct ap_lock *lock)
{
    uint32_t expected = 0;
    return atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void ap_unlock(struct ap_lock *lock)
{
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2)
        ap_lock_wake(lock);
}

/* For a few instructions without a system call: unlocking is a plain store, which wakes nobody, so
 * one that waits looks again by itself. All zero is unlocked here, too. */
struct ap_short_lock {
    _Atomic uint32_t word; /* 0 free, 1 held */
};

void ap_short_lock_wait(struct ap_short_lock *lock);

static inline void ap_short_lock(struct ap_short_lock *lock)
{
    if (atomic_exchange_explicit(&lock->word, 1, memory_order_acquire) != 0)
        ap_short_lock_wait(lock);
}

static inline void ap_short_unlock(struct ap_short_lock *lock)
{
    atomic_store_explicit(&lock->word, 0, memory_order_release);
}

#endif
