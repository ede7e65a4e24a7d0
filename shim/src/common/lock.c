#include "lock.h"

#include "sys.h"

void ap_lock_wait(struct ap_lock *lock)
{
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
        ap_futex_wait(&lock->word, 2);
}

void ap_lock_wake(struct ap_lock *lock)
{
    ap_futex_wake_one(&lock->word);
}

#define SPINS 100
#define NAP_NS 20000 /* the holder has lost its processor: give it ours */

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void ap_short_lock_wait(struct ap_short_lock *lock)
{
    do {
        for (int i = 0; i < SPINS && atomic_load_explicit(&lock->word, memory_order_relaxed); i++)
            relax();
        if (atomic_load_explicit(&lock->word, memory_order_relaxed))
            ap_nap(NAP_NS);
    } while (atomic_exchange_explicit(&lock->word, 1, memory_order_acquire) != 0);
}
