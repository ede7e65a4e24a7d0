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
