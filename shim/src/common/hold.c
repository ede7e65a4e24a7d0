#include "hold.h"

#include <stdatomic.h>

/* The number is made of the share and of the slot, so that what is held twice is found again. */
static uint32_t number_of(const struct ap_process *process, const struct ap_share *share, int index)
{
    return (uint32_t)(share - process->shares) * APPORTION_LEDGER_SLOT_COUNT + (uint32_t)index + 1;
}

static struct ap_share *share_of(struct ap_process *process, uint32_t hold)
{
    return &process->shares[(hold - 1) / APPORTION_LEDGER_SLOT_COUNT];
}

static int index_of(uint32_t hold)
{
    return (int)((hold - 1) % APPORTION_LEDGER_SLOT_COUNT);
}

/* Without memory to note it the slot stays held until this process ends: rather too much. */
static void note(struct ap_process *process, struct ap_gpu *gpu, uint32_t hold,
                 struct apportion_ledger_slot *slot)
{
    struct ap_record record = {.key = hold,
                               .bytes = atomic_load(&slot->used),
                               .context = (uint64_t)(uintptr_t)slot,
                               .count = 1,
                               .gpu = (uint16_t)gpu->index};
    struct ap_record old;
    bool had_old;
    if (ap_table_put(&process->holds, &record, &old, &had_old))
        atomic_fetch_add(&gpu->held_bytes, record.bytes);
}

uint32_t ap_hold_make(struct ap_process *process, struct ap_gpu *gpu, uint64_t object,
                      uint64_t bytes)
{
    struct apportion_ledger_slot *slot = NULL;
    uint32_t hold = 0;
    ap_lock(&process->hold_lock);
    for (uint32_t i = 0; i < gpu->share_count && !hold; i++) {
        int index = ap_ledger_share(&gpu->shares[i]->ledger, object, bytes, &slot);
        if (index >= 0)
            hold = number_of(process, gpu->shares[i], index);
    }
    if (hold)
        note(process, gpu, hold, slot);
    ap_unlock(&process->hold_lock);
    return hold;
}

uint32_t ap_hold_find(struct ap_process *process, struct ap_gpu *gpu, uint64_t object)
{
    struct apportion_ledger_slot *slot = NULL;
    uint32_t hold = 0;
    ap_lock(&process->hold_lock);
    for (uint32_t i = 0; i < gpu->share_count && !hold; i++) {
        int index = ap_ledger_hold(&gpu->shares[i]->ledger, object, &slot);
        if (index >= 0)
            hold = number_of(process, gpu->shares[i], index);
    }
    if (hold && ap_table_ref_known(&process->holds, hold))
        ap_ledger_unmap_slot(slot); /* held already */
    else if (hold)
        note(process, gpu, hold, slot);
    ap_unlock(&process->hold_lock);
    return hold;
}

uint64_t ap_hold_object(struct ap_process *process, uint32_t hold)
{
    struct ap_record record;
    if (!ap_table_get(&process->holds, hold, &record))
        return 0;
    return atomic_load(&((struct apportion_ledger_slot *)(uintptr_t)record.context)->object);
}

uint64_t ap_hold_size(struct ap_process *process, uint32_t hold)
{
    struct ap_record record;
    return ap_table_get(&process->holds, hold, &record) ? record.bytes : 0;
}

/* FNV-1a. */
uint64_t ap_hold_known_by(const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    uint64_t number = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < size; i++)
        number = (number ^ at[i]) * UINT64_C(0x100000001b3);
    return number | UINT64_C(1) << 63;
}

void ap_hold_again(struct ap_process *process, uint32_t hold)
{
    (void)ap_table_ref_known(&process->holds, hold);
}

void ap_hold_retire(struct ap_process *process, uint32_t hold)
{
    struct ap_record record;
    ap_lock(&process->hold_lock);
    if (ap_table_get(&process->holds, hold, &record))
        ap_ledger_retire((struct apportion_ledger_slot *)(uintptr_t)record.context);
    ap_unlock(&process->hold_lock);
}

void ap_hold_drop(struct ap_process *process, uint32_t hold)
{
    struct ap_record last;
    ap_lock(&process->hold_lock);
    if (ap_table_unref(&process->holds, hold, &last)) {
        atomic_fetch_sub(&process->gpus[last.gpu].held_bytes, last.bytes);
        ap_ledger_let_go(&share_of(process, hold)->ledger, index_of(hold),
                         (struct apportion_ledger_slot *)(uintptr_t)last.context);
    }
    ap_unlock(&process->hold_lock);
}

uint64_t ap_hold_bytes(struct ap_gpu *gpu)
{
    return atomic_load(&gpu->held_bytes);
}
