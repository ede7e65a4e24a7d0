#include "charge.h"

#include <stdatomic.h>

#include "../common/account.h"
#include "../common/descriptor.h"
#include "../common/hold.h"
#include "device.h"
#include "mem_vmm.h"
#include "pool.h"

#define SMALL_MOST (UINT64_C(1) << 20)
#define SMALL_STEP UINT64_C(512)
#define SMALL_BLOCKS_SHIFT 40 /* in ap_gpu.small: blocks above, steps below */
#define SMALL_STEPS_MASK ((UINT64_C(1) << SMALL_BLOCKS_SHIFT) - 1)
#define DROP_AT_ONCE 32

static bool is_small(uint64_t bytes)
{
    return bytes <= SMALL_MOST;
}

static uint64_t round_up(uint64_t bytes, uint64_t step)
{
    return bytes > UINT64_MAX - step ? UINT64_MAX : (bytes + step - 1) / step * step;
}

/* What a piece of `bytes` and `blocks` empty ones come to in ap_gpu.small. */
static uint64_t small_sum(uint64_t blocks, uint64_t bytes)
{
    return (blocks << SMALL_BLOCKS_SHIFT) + round_up(bytes, SMALL_STEP) / SMALL_STEP;
}

/* Whether the blocks that this process holds may have room for a piece. Only a guess: the driver
 * decides where it goes, and the free room may be in pieces too short. */
static bool may_fit_in_blocks(struct ap_gpu *gpu, uint64_t bytes)
{
    uint64_t small = atomic_load(&gpu->small) + small_sum(0, bytes);
    uint64_t held = small >> SMALL_BLOCKS_SHIFT << AP_BLOCK_SHIFT;
    return (small & SMALL_STEPS_MASK) * SMALL_STEP <= held;
}

CUresult ap_charge_where(struct ap_ticket *ticket)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    CUdevice device = -1;
    if (!real->cuCtxGetDevice || !real->cuCtxGetCurrent)
        return CUDA_ERROR_NOT_FOUND;
    /* Without a current context this fails as the allocation would (measured: both 201). */
    CUresult result = real->cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS)
        result = real->cuCtxGetCurrent(&context);
    if (result != CUDA_SUCCESS)
        return result;
    ticket->context = (uint64_t)(uintptr_t)context;
    ticket->gpu = ap_gpu_of_device(ticket->process, device);
    return ticket->gpu ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Small pieces of a GPU are placed one at a time, so that no second one comes to lie in a block
 * that turns out not to fit. */
static void enter_small(struct ap_ticket *ticket)
{
    ap_lock(&ticket->gpu->small_lock);
    ticket->small_locked = true;
}

static void leave_small(struct ap_ticket *ticket)
{
    if (ticket->small_locked)
        ap_unlock(&ticket->gpu->small_lock);
    ticket->small_locked = false;
}

static void move_begins(struct ap_ticket *ticket)
{
    ap_gpu_move_begins(ticket->gpu);
    ticket->moving = true;
}

static void move_ends(struct ap_ticket *ticket)
{
    if (ticket->moving)
        ap_gpu_move_ends(ticket->gpu);
    ticket->moving = false;
}

static bool reserve(struct ap_ticket *ticket, uint64_t bytes, uint64_t wanted)
{
    if (is_small(bytes)) {
        enter_small(ticket);
        if (may_fit_in_blocks(ticket->gpu, bytes))
            return true;
    }
    if (ap_gpu_reserve(ticket->process, ticket->gpu, wanted)) {
        move_begins(ticket); /* not before: a refusal wants to know the driver's word */
        ticket->reserved = wanted;
        return true;
    }
    leave_small(ticket);
    return false;
}

bool ap_charge_reserve(struct ap_ticket *ticket, uint64_t bytes)
{
    uint64_t wanted = round_up(bytes, AP_BLOCK);
    ticket->bytes = bytes;
    if (reserve(ticket, bytes, wanted) ||
        (ap_gpu_await_dead(ticket->process, ticket->gpu, wanted) &&
         reserve(ticket, bytes, wanted)))
        return true;
    ap_gpu_count_denied(ticket->gpu);
    return false;
}

CUresult ap_charge_begin(struct ap_ticket *ticket, uint64_t bytes)
{
    *ticket = (struct ap_ticket){.process = ap_process()};
    if (!ticket->process)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ap_charge_where(ticket);
    if (result != CUDA_SUCCESS)
        return result;
    return ap_charge_reserve(ticket, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* So that the overhead (truth.h) is not taken for smaller than it is. */
static void set_unseen(struct ap_ticket *ticket, uint64_t bytes)
{
    if (ticket->managed)
        atomic_fetch_add(&ticket->gpu->overhead.unseen, bytes - ticket->unseen);
    ticket->unseen = bytes;
}

void ap_charge_managed(struct ap_ticket *ticket)
{
    ticket->managed = true;
    set_unseen(ticket, ticket->reserved);
}

static void give_back(struct ap_ticket *ticket)
{
    set_unseen(ticket, 0);
    ap_gpu_release(ticket->gpu, ticket->reserved);
    ticket->reserved = 0;
}

void ap_charge_cancel(struct ap_ticket *ticket)
{
    give_back(ticket);
    leave_small(ticket);
    move_ends(ticket);
}

static uint64_t first_block(uint64_t pointer)
{
    return pointer >> AP_BLOCK_SHIFT;
}

static uint64_t last_block(uint64_t pointer, uint64_t bytes)
{
    return (pointer + bytes - 1) >> AP_BLOCK_SHIFT;
}

/* Drops the references of blocks [from, to); returns how many blocks nobody refers to any more. */
static uint64_t leave_blocks(struct ap_gpu *gpu, uint64_t from, uint64_t to)
{
    struct ap_record last;
    uint64_t empty = 0;
    for (uint64_t block = from; block < to; block++)
        empty += ap_table_unref(&gpu->blocks, block, &last);
    return empty;
}

/* The charge becomes what the piece's blocks cost, of which some may be paid for already. */
static bool enter_blocks(struct ap_ticket *ticket, uint64_t pointer, uint64_t bytes)
{
    struct ap_gpu *gpu = ticket->gpu;
    uint64_t from = first_block(pointer), to = last_block(pointer, bytes) + 1, fresh = 0, block;
    bool first = false;
    for (block = from; block < to && ap_table_ref(&gpu->blocks, block, &first); block++)
        fresh += first;
    uint64_t cost = fresh << AP_BLOCK_SHIFT;
    if (cost > ticket->reserved &&
        ap_gpu_reserve(ticket->process, gpu, cost - ticket->reserved))
        ticket->reserved = cost;
    if (block == to && cost <= ticket->reserved) {
        ap_gpu_release(gpu, ticket->reserved - cost);
        ticket->reserved = cost;
        atomic_fetch_add(&gpu->small, small_sum(fresh, bytes));
        return true;
    }
    /* A block that was in use before and is not any more was paid for by those who left it. */
    uint64_t left = leave_blocks(gpu, from, block) - fresh;
    if (left)
        atomic_fetch_sub(&gpu->small, small_sum(left, 0));
    ticket->reserved += left << AP_BLOCK_SHIFT;
    give_back(ticket);
    return false;
}

static bool settle_large(struct ap_ticket *ticket, uint64_t bytes)
{
    uint64_t taken = round_up(bytes, AP_BLOCK);
    if (taken > ticket->reserved) {
        if (!ap_gpu_reserve(ticket->process, ticket->gpu, taken - ticket->reserved)) {
            give_back(ticket);
            return false;
        }
    } else {
        ap_gpu_release(ticket->gpu, ticket->reserved - taken);
    }
    ticket->reserved = taken;
    return true;
}

bool ap_charge_remember(struct ap_ticket *ticket, const struct ap_record *record)
{
    struct ap_record old;
    bool had_old;
    if (!ap_table_put(&ticket->process->pointers, record, &old, &had_old))
        return false;
    /* The driver gave an address out again that we hold as allocated: it was freed in a way that
     * we did not see. */
    if (had_old)
        ap_charge_drop(ticket->process, &old);
    return true;
}

bool ap_charge_settle(struct ap_ticket *ticket, CUdeviceptr pointer, uint64_t bytes)
{
    bool small = is_small(bytes);
    struct ap_record record = {.key = pointer,
                               .bytes = small ? bytes : round_up(bytes, AP_BLOCK),
                               .context = ticket->context,
                               .gpu = (uint16_t)ticket->gpu->index,
                               .kind = (small ? AP_SMALL : AP_LARGE) |
                                       (ticket->managed ? AP_MANAGED : 0)};
    if (small ? enter_blocks(ticket, pointer, bytes) : settle_large(ticket, bytes)) {
        set_unseen(ticket, ticket->reserved);
        if (ap_charge_remember(ticket, &record)) {
            leave_small(ticket);
            move_ends(ticket);
            return true;
        }
        ap_charge_drop(ticket->process, &record);
    }
    return false;
}

void ap_charge_end_refused(struct ap_ticket *ticket)
{
    leave_small(ticket);
    move_ends(ticket);
    ap_gpu_count_denied(ticket->gpu);
}

/* Bytes that go back with a piece: the blocks in which it was the last. */
static uint64_t leave_small_blocks(struct ap_gpu *gpu, const struct ap_record *record)
{
    uint64_t from = first_block(record->key);
    uint64_t to = last_block(record->key, record->bytes) + 1;
    uint64_t empty = leave_blocks(gpu, from, to);
    atomic_fetch_sub(&gpu->small, small_sum(empty, record->bytes));
    return empty << AP_BLOCK_SHIFT;
}

bool ap_charge_small_array(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    ap_lock(&gpu->array_lock);
    uint64_t held = round_up(gpu->array_bytes, AP_BLOCK);
    uint64_t wanted = round_up(gpu->array_bytes + bytes, AP_BLOCK);
    bool fits = wanted == held || ap_gpu_reserve(process, gpu, wanted - held);
    if (fits)
        gpu->array_bytes += bytes;
    ap_unlock(&gpu->array_lock);
    return fits;
}

static uint64_t leave_small_array(struct ap_gpu *gpu, uint64_t bytes)
{
    ap_lock(&gpu->array_lock);
    uint64_t held = round_up(gpu->array_bytes, AP_BLOCK);
    gpu->array_bytes -= bytes;
    uint64_t left = round_up(gpu->array_bytes, AP_BLOCK);
    ap_unlock(&gpu->array_lock);
    return held - left;
}

void ap_charge_drop(struct ap_process *process, const struct ap_record *record)
{
    struct ap_gpu *gpu = &process->gpus[record->gpu];
    uint64_t back = record->bytes;
    if (record->kind == AP_HELD || record->kind == AP_GIVEN) {
        if (record->kind == AP_GIVEN)
            ap_hold_retire(process, (uint32_t)record->bytes);
        ap_hold_drop(process, (uint32_t)record->bytes);
        ap_descriptor_look(process, (uint32_t)record->bytes);
        return;
    }
    if (record->kind == AP_PART) {
        /* Its number is never used again, so this needs no lock; who comes here may hold it. */
        ap_memory_let_go(process, record->bytes);
        return;
    }
    uint16_t kind = record->kind & ~AP_MANAGED;
    if (kind == AP_SMALL)
        back = leave_small_blocks(gpu, record);
    else if (kind == AP_SMALL_ARRAY)
        back = leave_small_array(gpu, record->bytes);
    if (record->kind & AP_MANAGED)
        atomic_fetch_sub(&gpu->overhead.unseen, back);
    ap_gpu_release(gpu, back);
}

void ap_charge_drop_context(struct ap_process *process, uint64_t context)
{
    struct ap_record records[DROP_AT_ONCE];
    size_t count;
    while ((count = ap_table_take_context(&process->pointers, context, records, DROP_AT_ONCE)) > 0)
        for (size_t i = 0; i < count; i++)
            ap_charge_drop(process, &records[i]);
}

/* The record is taken out before the driver frees: afterwards another thread may be given the same
 * address, and its record must not be the one we take. If the driver refuses, it goes back. What we
 * do not know is the driver's affair. */
CUresult ap_charge_free(CUdeviceptr key, CUresult (*driver)(CUdeviceptr key))
{
    struct ap_process *process = ap_process();
    struct ap_record record, old;
    bool had_old = false;
    if (!process || !ap_table_take(&process->pointers, key, &record)) {
        CUresult result = driver(key);
        /* A pool's memory goes back to the card at once when it is freed like this. */
        if (process && key && result == CUDA_SUCCESS)
            ap_pools_look(process);
        return result;
    }
    struct ap_gpu *gpu = &process->gpus[record.gpu];
    ap_gpu_move_begins(gpu);
    CUresult result = driver(key);
    if (result == CUDA_SUCCESS)
        ap_charge_drop(process, &record);
    else /* Without memory to put it back the charge stays: too much, never too little. */
        (void)ap_table_put(&process->pointers, &record, &old, &had_old);
    ap_gpu_move_ends(gpu);
    return result;
}
