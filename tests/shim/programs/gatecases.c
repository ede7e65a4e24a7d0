/* What chance seldom brings to the gate: another thread, or a call, in between at the worst moment.
 * The library's own code on a GPU that does one piece of work after the other, in simulated time.
 *   gatecases <case>
 * Silence and status 0: it held. */
#include "gatecases.h"

#include <string.h>

enum { WORKS = 1024 };

static struct share_files files;
struct tenant tenants[2] = {{.files = &files}, {.files = &files}}, *tenant = tenants;
uint64_t time_now = BEGIN, reads, call_takes;
uint32_t works;
CUstream stream_now;
void (*rival)(void);
static uint64_t ends[WORKS];

struct tenant *sim_tenant(void)
{
    return tenant;
}

struct ap_gate *the_gate(void)
{
    return atomic_load(&tenant->process->gpus[0].gate);
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

void set_slot(uint64_t period, uint64_t length)
{
    struct apportion_schedule_state *state = &files.schedule.state[1];
    files.schedule.generation = 1;
    state->period_ns = period;
    state->own_count = 1;
    state->own[0] = (struct apportion_slot_time){0, length};
}

struct apportion_ledger_cores *account(void)
{
    return &files.ledger.cores;
}

static void submit(uint64_t length)
{
    bool waits = !stream_now && works && ends[works - 1] > time_now;
    CHECK(works < WORKS);
    ends[works] = (waits ? ends[works - 1] : time_now) + length;
    works++;
}

void gpu_submit_event(unsigned queue)
{
    (void)queue;
    submit(0);
}

const struct ap_estimate *estimate_of(uint64_t key)
{
    struct ap_estimates *estimates = &the_gate()->estimates;
    return &estimates->of[ap_estimate_place(estimates, key)];
}

void launch_as(uint64_t key, uint64_t length, CUresult result)
{
    struct ap_pass pass;
    CHECK(ap_gate_enter(&pass, key, stream_now, false) == CUDA_SUCCESS);
    sim_pass(call_takes);
    if (result == CUDA_SUCCESS)
        submit(length);
    ap_gate_leave(&pass, result);
}

void launch(uint64_t length)
{
    launch_as(KERNEL, length, CUDA_SUCCESS);
}

void pass_until(uint64_t when)
{
    sim_sleep_until(when);
    (void)ap_gate_look(tenant->process, the_gate());
}

int main(int argc, char **argv)
{
    set_slot(PERIOD, SLOT);
    process_make(&tenants[0], 0);
    process_make(&tenants[1], 1);
    atomic_store(&ap_gates_exist, true);
    for (const struct gatecase *one = cases; argc == 2 && one->name; one++)
        if (strcmp(argv[1], one->name) == 0) {
            one->run();
            return 0;
        }
    return 2;
}
