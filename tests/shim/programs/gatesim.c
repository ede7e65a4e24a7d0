/* The gate, the library's own code, on a simulated GPU and in simulated time, so that what comes of
 * it does not depend on how busy this machine is.
 *   gatesim <seconds> <period us> <tenant>…
 * Tenant: <slots>:<kernel ns>:<batch>:<graph 0|1>:<threads>:<processes>, slots "from,length+…" in us
 * of the period, or "none" for a share without a limit. Each thread launches a batch, kernel by
 * kernel or as one graph, waits for it, and begins again. A kernel length "a/b" takes turns. Prints
 * for each tenant the percentage of the GPU's time that its work was, as it is by itself, and the
 * account in the ledger. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "gatesim.h"

static struct task tasks[TASKS];
static unsigned task_count, running;
static ucontext_t scheduler;
static struct tenant tenants[TENANTS];
static unsigned tenant_count;
static uint64_t seconds, period;

struct tenant *sim_tenant(void)
{
    return tasks[running].tenant;
}

uint64_t sim_random(uint64_t below)
{
    static uint64_t state = UINT64_C(88172645463325252);
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? state % below : 0;
}

/* Lets those go first whose time is earlier. */
static void yield(void)
{
    for (unsigned i = 0; i < task_count; i++)
        if (tasks[i].now + 1000 < tasks[running].now) {
            swapcontext(&tasks[running].context, &scheduler);
            return;
        }
}

void sim_pass(uint64_t time)
{
    tasks[running].now += time;
    yield();
}

uint64_t sim_now(void)
{
    return tasks[running].now;
}

void sim_sleep_until(uint64_t when)
{
    if (when > tasks[running].now)
        tasks[running].now = when;
    yield();
}

static void launch(struct task *task, uint64_t length, uint64_t key)
{
    struct ap_pass pass;
    if (task->tenant->gated)
        (void)ap_gate_enter(&pass, key, (CUstream)task, false);
    sim_pass(LAUNCH_NS);
    gpu_submit(task->tenant->queue, length);
    if (task->tenant->gated)
        ap_gate_leave(&pass, CUDA_SUCCESS);
}

static void work(void)
{
    struct task *task = &tasks[running];
    const struct tenant *tenant = task->tenant;
    while (task->now < seconds) {
        uint64_t all = 0;
        for (uint64_t i = 0; i < tenant->batch; i++) {
            uint64_t length = tenant->length[task->turn++ % tenant->lengths];
            all += length;
            if (!tenant->graph)
                launch(task, length, length);
        }
        if (tenant->graph)
            launch(task, all, 1);
        gpu_wait(tenant->queue);
        sim_pass(HOST_NS);
    }
    task->now = UINT64_MAX / 2;
    swapcontext(&task->context, &scheduler);
}

static void begin(struct tenant *tenant)
{
    struct task *task = &tasks[task_count++];
    *task = (struct task){.tenant = tenant, .now = sim_random(50000000)};
    getcontext(&task->context);
    task->context.uc_stack.ss_size = 1 << 18;
    task->context.uc_stack.ss_sp = malloc(1 << 18);
    makecontext(&task->context, work, 0);
}

static void set_schedule(struct share_files *files, const char *slots)
{
    struct apportion_schedule *schedule = &files->schedule;
    struct apportion_schedule_state *state = &schedule->state[1];
    schedule->generation = 1;
    state->period_ns = period;
    for (; *slots; slots += strcspn(slots, "+"), slots += *slots == '+') {
        double from, length;
        if (sscanf(slots, "%lf,%lf", &from, &length) != 2)
            exit(2);
        state->own[state->own_count++] =
            (struct apportion_slot_time){(uint64_t)(from * 1e3), (uint64_t)(length * 1e3)};
    }
}

static void set_lengths(struct tenant *tenant, char *text)
{
    char *rest = NULL;
    for (char *one = strtok_r(text, "/", &rest); one; one = strtok_r(NULL, "/", &rest))
        tenant->length[tenant->lengths++] = strtoull(one, NULL, 10);
}

static struct share_files *files_of(const char *slots)
{
    struct share_files *files = calloc(1, sizeof *files);
    set_schedule(files, slots);
    return files;
}

/* All processes of it have one share, and a queue each. */
static void add(char *text)
{
    char slots[256], lengths[256];
    unsigned batch, graph, threads, processes;
    if (sscanf(text, "%255[^:]:%255[^:]:%u:%u:%u:%u", slots, lengths, &batch, &graph, &threads,
               &processes) != 6)
        exit(2);
    bool gated = strcmp(slots, "none") != 0;
    struct share_files *files = files_of(gated ? slots : "0,1");
    for (unsigned i = 0; i < processes; i++) {
        char copy[256];
        struct tenant *tenant = &tenants[tenant_count];
        *tenant = (struct tenant){.batch = batch, .graph = graph, .gated = gated, .files = files,
                                  .queue = tenant_count++, .text = text, .first = i == 0};
        snprintf(copy, sizeof copy, "%s", lengths);
        set_lengths(tenant, copy);
        process_make(tenant, i);
        for (unsigned t = 0; t < threads; t++)
            begin(tenant);
    }
}

static void run_all(void)
{
    for (;;) {
        for (unsigned i = running = 0; i < task_count; i++)
            if (tasks[i].now < tasks[running].now)
                running = i;
        if (tasks[running].now >= UINT64_MAX / 2)
            return;
        swapcontext(&scheduler, &tasks[running].context);
    }
}

static void report(void)
{
    for (unsigned i = 0; i < tenant_count; i++) {
        double served = 0;
        const struct apportion_ledger_cores *cores = &tenants[i].files->ledger.cores;
        if (!tenants[i].first)
            continue;
        for (unsigned j = i; j < tenant_count && tenants[j].files == tenants[i].files; j++)
            served += gpu_served(tenants[j].queue);
        printf("%s %.2f used %.0f overrun %.1f waited %.0f carry %.2f ms\n", tenants[i].text,
               100 * served / (double)seconds, (double)cores->used_ns * 1e-6,
               (double)cores->overrun_ns * 1e-6, (double)cores->waited_ns * 1e-6,
               (double)cores->carry_ns * 1e-6);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    seconds = (uint64_t)(atof(argv[1]) * 1e9);
    period = strtoull(argv[2], NULL, 10) * 1000;
    for (int i = 3; i < argc; i++)
        add(argv[i]);
    run_all();
    report();
    return 0;
}
