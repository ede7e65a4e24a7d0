/* What chance seldom brings to the gate: another thread, or a call, in between at the worst moment.
 * The library's own code on a GPU that does one piece of work after the other, in simulated time.
 *   gatecases <case>
 * Silence and status 0: it held. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gatesim.h"

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                      \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

#define SECOND UINT64_C(1000000000)
#define BEGIN (100 * SECOND) /* of a period, and of the share's slot */
#define PERIOD (100 * AP_MILLI)
#define SLOT (50 * AP_MILLI)
#define KERNEL (2 * AP_MILLI)
#define FOR_EVER (1000 * SECOND)

enum { WORKS = 1024 };

static struct share_files files;
static struct tenant tenant = {.files = &files};
static struct ap_process *process;
static uint64_t time_now = BEGIN, reads, ends[WORKS];
static uint32_t works;
static void (*rival)(void); /* comes in as soon as the time was read and the gate is not locked */

struct tenant *sim_tenant(void)
{
    return &tenant;
}

static struct ap_gate *the_gate(void)
{
    return atomic_load(&process->gpus[0].gate);
}

uint64_t sim_now(void)
{
    uint64_t now = time_now;
    void (*comes)(void) = rival;
    reads++;
    if (comes && the_gate() && atomic_load(&the_gate()->lock.word) == 0) {
        rival = NULL;
        comes();
    }
    return now;
}

void sim_pass(uint64_t time)
{
    time_now += time;
    CHECK(time_now < BEGIN + 60 * SECOND); /* or somebody waits for ever */
}

void sim_sleep_until(uint64_t when)
{
    if (when > time_now)
        sim_pass(when - time_now);
}

uint64_t sim_random(uint64_t below)
{
    (void)below;
    return 0;
}

uint64_t gpu_submitted(unsigned queue)
{
    (void)queue;
    return works;
}

uint64_t gpu_done_at(unsigned queue, uint64_t work)
{
    (void)queue;
    return ends[work - 1] <= time_now ? ends[work - 1] : 0;
}

static struct apportion_ledger_cores *account(void)
{
    return &files.ledger.cores;
}

static void submit(uint64_t length)
{
    uint64_t from = works && ends[works - 1] > time_now ? ends[works - 1] : time_now;
    CHECK(works < WORKS);
    ends[works++] = from + length;
}

void gpu_submit_event(unsigned queue)
{
    (void)queue;
    submit(0);
}

static const struct ap_estimate *estimate_of(uint64_t key)
{
    struct ap_estimates *estimates = &the_gate()->estimates;
    return &estimates->of[ap_estimate_place(estimates, key)];
}

static void launch_as(uint64_t key, uint64_t length, CUresult result)
{
    struct ap_pass pass;
    CHECK(ap_gate_enter(&pass, key, NULL, false) == CUDA_SUCCESS);
    if (result == CUDA_SUCCESS)
        submit(length);
    ap_gate_leave(&pass, result);
}

static void launch(uint64_t length)
{
    launch_as(KERNEL, length, CUDA_SUCCESS);
}

static void pass_until(uint64_t when)
{
    sim_sleep_until(when);
    (void)ap_gate_look(process, the_gate());
}

/* The estimate of KERNEL is learnt, all is done, and a slot has just begun. */
static void learn(void)
{
    launch(KERNEL);
    pass_until(BEGIN + PERIOD);
    CHECK(the_gate()->head == the_gate()->tail);
}

static void time_passes_and_work_is_done(void)
{
    pass_until(time_now + KERNEL + KERNEL / 2);
}

/* The time that a thread has read is old when it gets the lock. */
static void late(void)
{
    learn();
    launch(KERNEL);
    launch(KERNEL);
    account()->carry_ns = -10 * (int64_t)AP_MILLI;
    rival = time_passes_and_work_is_done;
    launch(KERNEL);
    CHECK(account()->waited_ns > 5 * AP_MILLI);
}

/* Somebody's context comes to its end, which takes as long as its work. */
static void ending(void)
{
    learn();
    launch(FOR_EVER);
    sim_pass(2 * KERNEL);
    ap_gate_before_end(process);
    reads = 0;
    uint64_t from = time_now;
    launch(KERNEL);
    CHECK(time_now - from < 2 * SECOND);
    CHECK(reads < 1000000); /* it slept */
    ap_gate_after_end(process);
}

/* What the driver refuses takes no time; the next one is measured in its place. */
static void refused(void)
{
    learn();
    for (int i = 0; i < 300; i++)
        launch_as(KERNEL, 0, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(the_gate()->work == 0 && the_gate()->open.work == 0);
    CHECK(account()->waited_ns == 0 && time_now < BEGIN + PERIOD + AP_MILLI);
    launch(KERNEL);
    CHECK(the_gate()->tail - the_gate()->head == 1);
    for (int i = 0; i < 2; i++)
        launch_as(2, 0, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(estimate_of(2)->samples == 0 && estimate_of(2)->trials == 0);
}

/* A graph ends while it runs, and another one has its handle. */
static void graph(void)
{
    CUgraphExec exec = (CUgraphExec)&tenant;
    uint64_t key = ap_gate_graph_key(exec);
    learn();
    launch_as(key, 20 * AP_MILLI, CUDA_SUCCESS);
    ap_gate_graph_ended(exec);
    pass_until(BEGIN + 2 * PERIOD);
    CHECK(the_gate()->head == the_gate()->tail);
    CHECK(estimate_of(key)->samples == 0);
    launch_as(key, AP_MICRO, CUDA_SUCCESS);
    pass_until(time_now + AP_MILLI);
    CHECK(estimate_of(key)->time < AP_MILLI / 10);
    ap_gate_graph_ended(exec);
    CHECK(estimate_of(key)->samples == 0);
}

/* With a context go its events and its work. */
static void context(void)
{
    learn();
    launch(FOR_EVER);
    launch_as(2, FOR_EVER, CUDA_SUCCESS);
    ap_gate_before_end(process);
    CHECK(!ap_gate_look(process, the_gate()));
    contexts_ended++;
    ap_gate_context_ended(process, (uint64_t)(uintptr_t)&tenant);
    ap_gate_after_end(process);
    CHECK(the_gate()->head == the_gate()->tail && the_gate()->work == 0);
    CHECK(estimate_of(2)->trials == 0);
    works = 0;
    launch(KERNEL);
    pass_until(time_now + PERIOD);
    CHECK(the_gate()->head == the_gate()->tail);
}

/* What is never done holds up nobody for more than a second, whatever the account says. */
static void stuck(void)
{
    learn();
    launch(FOR_EVER);
    account()->carry_ns = -(int64_t)AP_DEBT_MAX;
    uint64_t from = time_now;
    launch(KERNEL);
    CHECK(time_now - from >= SECOND && time_now - from < SECOND + 2 * PERIOD);
    CHECK(time_now % PERIOD < SLOT);
}

/* Work that was never measured goes alone, but not for long. */
static void alone(void)
{
    learn();
    launch_as(2, 3 * KERNEL, CUDA_SUCCESS);
    launch_as(2, 3 * KERNEL, CUDA_SUCCESS);
    CHECK(time_now >= BEGIN + PERIOD + 3 * KERNEL && estimate_of(2)->samples == 1);
    pass_until(BEGIN + 2 * PERIOD);
    launch_as(3, FOR_EVER, CUDA_SUCCESS);
    uint64_t from = time_now;
    launch_as(3, FOR_EVER, CUDA_SUCCESS);
    CHECK(time_now - from >= 100 * AP_MILLI && time_now - from < SECOND + PERIOD);
}

/* Without memory for what the library knows, nobody can say that nothing is limited. */
static void memory(void)
{
    struct ap_pass pass;
    tenant.process = NULL;
    atomic_store(&ap_gates_exist, false);
    ap_gates_look();
    CHECK(ap_gates_on());
    CHECK(ap_gate_enter(&pass, KERNEL, NULL, false) == CUDA_ERROR_OUT_OF_MEMORY);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {{"late", late},       {"ending", ending},   {"refused", refused}, {"graph", graph},
             {"context", context}, {"stuck", stuck},     {"alone", alone},
             {"memory", memory}};

int main(int argc, char **argv)
{
    struct apportion_schedule_state *state = &files.schedule.state[1];
    files.schedule.generation = 1;
    state->period_ns = PERIOD;
    state->own_count = 1;
    state->own[0] = (struct apportion_slot_time){0, SLOT};
    process_make(&tenant, 0);
    process = tenant.process;
    atomic_store(&ap_gates_exist, true);
    for (unsigned i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    return 2;
}
