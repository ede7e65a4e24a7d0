/* Launches wait here for their share's time. */
#include "gate.h"

#include "../common/account.h"
#include "../common/schedule.h"
#include "../common/shares.h"
#include "../common/sys.h"
#include "capture.h"
#include "device.h"
#include "gate_state.h"

#define MARK_EVERY (500 * AP_MICRO)   /* of work or time; an event takes the GPU 2 us (H200) */
#define MARK_LEAST (20 * AP_MICRO)
#define LOOK_AGAIN (20 * AP_MICRO)
#define ANCHOR_EVERY (2 * AP_MILLI)
#define WANTED_EVERY (1 * AP_MILLI)
#define NAP_MOST (10 * AP_MILLI)      /* a schedule may change */
#define NAP_LEAST (50 * AP_MICRO)
#define WAKE_EARLY (120 * AP_MICRO)   /* that a sleep may take too long: 96 us in nine of ten */
#define PATIENCE 10                   /* periods */
#define TRIAL_MOST (100 * AP_MILLI)
#define STUCK (1000 * AP_MILLI)

atomic_bool ap_gates_exist;

static bool has_schedule(const struct ap_process *process)
{
    for (uint32_t i = 0; i < process->share_count; i++)
        if (process->shares[i].schedule)
            return true;
    return false;
}

/* Where shares could not be read for want of something, launches come here and look again. */
void ap_gates_look(void)
{
    struct ap_process *process = ap_process();
    bool none = false;
    if (process) {
        ap_lock(&process->lock);
        none = ap_shares_scan(process, APPORTION_SHARES_DIR) == 0 && !has_schedule(process);
        ap_unlock(&process->lock);
    }
    atomic_store(&ap_gates_exist, !none);
}

static bool has_gate(const struct ap_gpu *gpu)
{
    for (uint32_t i = 0; i < gpu->share_count; i++)
        if (!gpu->shares[i]->schedule)
            return false;
    return true;
}

/* NULL: no memory. */
static struct ap_gate *gate_of(struct ap_process *process, struct ap_gpu *gpu)
{
    struct ap_gate *gate = atomic_load_explicit(&gpu->gate, memory_order_acquire), *none = NULL;
    if (gate)
        return gate;
    gate = ap_map_private(sizeof *gate);
    if (!gate)
        return NULL;
    gate->gpu = gpu;
    (void)ap_gpu_reserve(process, gpu, 0); /* takes the process's slot in the ledger */
    if (atomic_compare_exchange_strong(&gpu->gate, &none, gate))
        return gate;
    ap_unmap(gate, sizeof *gate);
    return none;
}

/* The GPU that the current context is on; NULL: the driver has its own error for that. Contexts are
 * made on known GPUs only, so where one is known it need not be asked for. */
static struct ap_gpu *gpu_here(struct ap_process *process)
{
    const struct real_cuda *real = real_cuda();
    CUdevice device = -1;
    if (atomic_load_explicit(&process->gpu_count, memory_order_acquire) == 1)
        return &process->gpus[0];
    if (!real->cuCtxGetDevice || real->cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return NULL;
    struct ap_gpu *gpu = (unsigned)device < AP_ORDINAL_MAX
        ? atomic_load_explicit(&process->by_ordinal[device], memory_order_acquire) : NULL;
    return gpu ? gpu : ap_gpu_of_device(process, device);
}

static uint64_t generations(const struct ap_gpu *gpu)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < gpu->share_count; i++)
        sum += ap_schedule_generation(gpu->shares[i]->schedule);
    return sum;
}

#define SHARES_AT_ONCE 8u /* of one GPU whose slots are used */

/* A state that is none leaves the calendar as it was. What changes after the sum is read again. */
static void read_schedules(struct ap_gate *gate)
{
    struct apportion_schedule_state states[SHARES_AT_ONCE];
    const struct ap_gpu *gpu = gate->gpu;
    uint64_t sum = generations(gpu), generation;
    uint32_t used = 0;
    for (; used < gpu->share_count && used < SHARES_AT_ONCE; used++)
        if (!ap_schedule_read(gpu->shares[used]->schedule, &states[used], &generation))
            return;
    ap_calendar_make(&gate->calendar, states, used);
    gate->generations = sum;
    gate->window = (struct ap_window){false, 0, 0};
}

static void look_up_window(struct ap_gate *gate, uint64_t now)
{
    if (gate->generations != generations(gate->gpu))
        read_schedules(gate);
    if (now >= gate->window.to)
        gate->window = gate->calendar.period
                           ? ap_calendar_at(&gate->calendar, now)
                           : (struct ap_window){false, 0, now + NAP_MOST};
}

static void note_wanted(struct ap_gate *gate, uint64_t now)
{
    if (now - gate->wanted < WANTED_EVERY)
        return;
    gate->wanted = now;
    for (uint32_t i = 0; i < gate->gpu->share_count; i++) {
        unsigned char *head = (unsigned char *)gate->gpu->shares[i]->ledger.head;
        struct apportion_ledger_cores *cores = (void *)(head + APPORTION_LEDGER_CORES_OFFSET);
        atomic_store_explicit(&cores->wanted_ns, now, memory_order_relaxed);
    }
}

static bool is_unfinished(const struct ap_gate *gate)
{
    return gate->head != gate->tail;
}

/* Work that never was measured goes alone: its first launch tells how long the next ones take. Not
 * for ever, since it may wait for them. */
static bool is_on_trial(const struct ap_gate *gate, const struct ap_pass *pass, uint64_t now)
{
    const struct ap_estimate *estimate = &gate->estimates.of[pass->place];
    return estimate->samples == 0 && estimate->trials > 0 && is_unfinished(gate) &&
           now - gate->progress < TRIAL_MOST;
}

/* Nothing was seen to be done for long. What is queued may wait for what we hold back. */
static bool is_stuck(const struct ap_gate *gate, uint64_t now)
{
    return is_unfinished(gate) && now - gate->progress > STUCK;
}

struct wait {
    uint64_t since;  /* when the launch was first held back; 0: not yet */
    uint64_t until;  /* when to ask again */
    uint64_t left;   /* as it was when it last asked */
    enum ap_launch_answer answer;
};

static enum ap_launch_answer ask(struct ap_gate *gate, struct ap_pass *pass, struct wait *wait,
                                 uint64_t now)
{
    look_up_window(gate, now);
    pass->place = ap_estimate_place(&gate->estimates, pass->key);
    const struct ap_estimate *estimate = &gate->estimates.of[pass->place];
    pass->time = estimate->samples ? estimate->time : AP_UNKNOWN_NS;
    wait->left = ap_work_left(gate->from, gate->work, now, is_unfinished(gate));
    bool fills_the_slot = pass->time > (gate->window.to - gate->window.from) / 2;
    uint64_t others = ap_gate_others_left(gate, now, gate->idle || fills_the_slot);
    if (gate->idle)
        ap_gate_count_idle(gate, now);
    struct ap_launch_question question = {
        .window = gate->window,
        .now = now,
        .left = wait->left,
        .others = others,
        .estimate = pass->time,
        .carry = ap_gate_carry(gate),
        .patient = wait->since && now - wait->since > PATIENCE * gate->calendar.period,
    };
    enum ap_launch_answer answer = ap_launch_may(&question, &wait->until);
    if (answer == AP_CLOSED)
        return AP_CLOSED;
    if (answer != AP_GO)
        return is_stuck(gate, now) ? AP_GO : answer;
    if (!is_on_trial(gate, pass, now))
        return AP_GO;
    wait->until = now + NAP_LEAST;
    return AP_DEEP;
}

/* What no event follows is taken to be done when it should be; if that is long ago, its end is not
 * the beginning of what comes now. */
static void begin_anew(struct ap_gate *gate, uint64_t now)
{
    gate->open.count = 0;
    gate->open.work = 0;
    gate->work = 0;
    gate->from = gate->progress = now;
}

/* Where no room is left, `wants_mark` ends this one. */
static void note_item(struct ap_mark *open, const struct ap_pass *pass)
{
    for (uint32_t i = 0; i < open->count; i++)
        if (open->items[i].key == pass->key) {
            open->items[i].count++;
            return;
        }
    if (open->count == AP_ITEMS)
        return;
    open->items[open->count++] =
        (struct ap_item){.key = pass->key, .place = pass->place, .count = 1};
}

/* An event now and then, more often towards the slot's end, and behind what nothing is known of. */
static bool wants_mark(const struct ap_gate *gate, const struct ap_pass *pass, uint64_t now)
{
    uint64_t quarter = (gate->window.to - now) / 4, enough = MARK_EVERY;
    if (quarter < enough)
        enough = quarter > MARK_LEAST ? quarter : MARK_LEAST;
    return gate->open.work >= enough || now - gate->marked >= MARK_EVERY ||
           gate->open.count == AP_ITEMS || gate->estimates.of[pass->place].samples == 0;
}

static void admit(struct ap_gate *gate, struct ap_pass *pass, uint64_t left, uint64_t now)
{
    bool drained = left == 0 && !is_unfinished(gate);
    if (drained && (gate->open.count == 0 || now - gate->from > 2 * gate->work + MARK_EVERY)) {
        begin_anew(gate, now);
        pass->began = now;
        pass->anchor = now - gate->anchored > ANCHOR_EVERY;
    }
    gate->work += pass->time;
    gate->open.work += pass->time;
    note_item(&gate->open, pass);
    gate->estimates.of[pass->place].trials++;
    gate->idle = gate->waiters ? now : 0;
    pass->gate = gate;
    pass->mark = wants_mark(gate, pass, now);
    if (pass->mark)
        gate->marked = now;
    ap_gate_publish(gate);
    note_wanted(gate, now);
}

static void count_waited(struct ap_gate *gate, uint64_t time)
{
    atomic_fetch_add_explicit(&ap_gate_cores(gate)->waited_ns, time, memory_order_relaxed);
}

/* With the gate's lock. True: the launch may go. */
static bool try(struct ap_gate *gate, struct ap_pass *pass, struct wait *wait, uint64_t now)
{
    wait->answer = ask(gate, pass, wait, now);
    if (wait->answer == AP_GO) {
        if (wait->since) {
            gate->waiters--;
            count_waited(gate, now - wait->since);
        }
        admit(gate, pass, wait->left, now);
        return true;
    }
    if (!wait->since) {
        wait->since = now;
        gate->waiters++;
    }
    if (!gate->idle)
        gate->idle = now;
    note_wanted(gate, now);
    return false;
}

/* The answer may be another one once it is known what is done meanwhile. */
static bool look_might_help(const struct ap_gate *gate, const struct wait *wait, uint64_t now)
{
    return is_unfinished(gate) && now - gate->looked >= LOOK_AGAIN &&
           (wait->answer != AP_GO || wait->left == 0);
}

static void pause_a_little(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* What begins at a certain moment is waited for to the microsecond: a processor is busy with the
 * last of it. */
static void rest(const struct wait *wait)
{
    uint64_t now = ap_now_ns(), until = wait->until;
    bool exactly = wait->answer != AP_DEEP && until <= now + NAP_MOST;
    if (until > now + NAP_MOST)
        until = now + NAP_MOST;
    if (!exactly)
        ap_sleep_until(until > now + NAP_LEAST ? until : now + NAP_LEAST);
    else if (until > now + WAKE_EARLY)
        ap_sleep_until(until - WAKE_EARLY);
    while (exactly && ap_now_ns() < until)
        pause_a_little();
}

/* The time is read with the lock: what others noted since would lie in the future otherwise. Where
 * another thread looks, which takes long while it ends a context, it goes by what is known. */
static void wait_for_turn(struct ap_process *process, struct ap_gate *gate, struct ap_pass *pass)
{
    struct wait wait = {0};
    bool in_vain = false; /* it has tried to look */
    for (;;) {
        ap_lock(&gate->lock);
        uint64_t now = ap_now_ns();
        bool stale = !in_vain && is_unfinished(gate) && now - gate->looked >= LOOK_AGAIN &&
                     ap_work_left(gate->from, gate->work, now, false) == 0;
        bool goes = !stale && try(gate, pass, &wait, now);
        stale = stale || (!goes && !in_vain && look_might_help(gate, &wait, now));
        ap_unlock(&gate->lock);
        if (goes)
            return;
        in_vain = stale && !ap_gate_look(process, gate);
        if (!stale)
            rest(&wait);
    }
}

CUresult ap_gate_enter(struct ap_pass *pass, uint64_t key, CUstream stream, bool per_thread)
{
    struct ap_process *process = ap_process();
    *pass = (struct ap_pass){.stream = stream, .per_thread = per_thread, .key = key};
    if (key == 0)
        return CUDA_SUCCESS;
    if (!process)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct ap_gpu *gpu = gpu_here(process);
    if (!gpu || !has_gate(gpu) || ap_capturing(process, stream, per_thread))
        return CUDA_SUCCESS;
    struct ap_gate *gate = gate_of(process, gpu);
    if (!gate)
        return CUDA_ERROR_OUT_OF_MEMORY;
    wait_for_turn(process, gate, pass);
    if (pass->anchor)
        ap_gate_anchor(process, gate);
    return CUDA_SUCCESS;
}

/* It was counted, but does not come. The event that was to follow it follows the next one. */
static void take_back(struct ap_gate *gate, const struct ap_pass *pass)
{
    ap_lock(&gate->lock);
    for (uint32_t i = 0; i < gate->open.count; i++) {
        struct ap_item *item = &gate->open.items[i];
        if (item->key != pass->key || item->count == 0)
            continue;
        item->count--;
        gate->open.work -= pass->time < gate->open.work ? pass->time : gate->open.work;
        gate->work -= pass->time < gate->work ? pass->time : gate->work;
    }
    struct ap_estimate *estimate = &gate->estimates.of[pass->place];
    if (estimate->key == pass->key && estimate->trials > 0)
        estimate->trials--;
    if (pass->mark)
        gate->marked = 0;
    ap_unlock(&gate->lock);
}

void ap_gate_leave(const struct ap_pass *pass, CUresult result)
{
    if (!pass->gate)
        return;
    if (result != CUDA_SUCCESS)
        take_back(pass->gate, pass);
    else if (pass->began)
        ap_gate_begun(pass->gate, pass);
    if (result == CUDA_SUCCESS && pass->mark)
        ap_gate_mark(ap_process(), pass->gate, pass->stream, pass->per_thread);
}

uint64_t ap_gate_graph_key(CUgraphExec exec)
{
    return ap_estimate_key(exec, 0);
}

void ap_gate_graph_ended(CUgraphExec exec)
{
    struct ap_process *process = ap_process();
    uint32_t count = process && ap_gates_on() ? atomic_load(&process->gpu_count) : 0;
    for (uint32_t i = 0; i < count; i++) {
        struct ap_gate *gate = atomic_load(&process->gpus[i].gate);
        if (!gate)
            continue;
        ap_lock(&gate->lock);
        ap_estimate_forget(&gate->estimates, ap_gate_graph_key(exec));
        ap_unlock(&gate->lock);
    }
}
