/* The cases; gatecases.c is the world that they are played in. */
#include "gatecases.h"

/* The estimate of KERNEL is learnt, all is done, and a slot has just begun. */
static void learn(void)
{
    launch(KERNEL);
    pass_until(BEGIN + PERIOD);
    CHECK(the_gate()->head == the_gate()->tail);
}

/* The driver loads a kernel with its first launch, which takes long; the GPU has none of it. */
static void loading(void)
{
    learn();
    call_takes = PERIOD + SLOT;
    launch_as(2, KERNEL, CUDA_SUCCESS);
    call_takes = 0;
    pass_until(time_now + 2 * KERNEL);
    CHECK(estimate_of(2)->samples == 1 && estimate_of(2)->time < 2 * KERNEL);
    CHECK(account()->carry_ns > -2 * (int64_t)KERNEL);
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
    ap_gate_before_end(tenant->process);
    reads = 0;
    uint64_t from = time_now;
    launch(KERNEL);
    CHECK(time_now - from < 2 * SECOND);
    CHECK(reads < 1000000); /* it slept */
    ap_gate_after_end(tenant->process);
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
    launch_as(SHORT, SHORT, CUDA_SUCCESS);
    pass_until(BEGIN + 2 * PERIOD);
    launch_as(SHORT, 0, CUDA_ERROR_OUT_OF_MEMORY); /* an event was to follow it */
    uint32_t before = the_gate()->tail;
    launch_as(SHORT, SHORT, CUDA_SUCCESS);
    CHECK(the_gate()->open.count == 0 && the_gate()->tail > before);
}

/* A graph ends while it runs, and another one has its handle. */
static void graph(void)
{
    CUgraphExec exec = (CUgraphExec)tenant;
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

static void end_context(CUcontext context)
{
    ap_gate_before_end(tenant->process);
    CHECK(!ap_gate_look(tenant->process, the_gate()));
    context_end(context);
    ap_gate_context_ended(tenant->process, (uint64_t)(uintptr_t)context);
    ap_gate_after_end(tenant->process);
}

/* With a context go its events and its work, and no other one's. */
static void context(void)
{
    CUcontext other = (CUcontext)&works;
    learn();
    launch(FOR_EVER);
    launch_as(2, FOR_EVER, CUDA_SUCCESS);
    context_now = other;
    launch_as(3, FOR_EVER, CUDA_SUCCESS);
    end_context((CUcontext)tenant);
    CHECK(the_gate()->tail - the_gate()->head == 1);
    CHECK(estimate_of(2)->trials == 0 && estimate_of(3)->trials == 1);
    end_context(other);
    CHECK(the_gate()->head == the_gate()->tail && the_gate()->work == 0);
    CHECK(estimate_of(3)->trials == 0);
    works = 0;
    for (int i = 2; i < 100; i++) { /* with the same handle, and always another one */
        context_now = i & 1 ? NULL : (CUcontext)((char *)other + i);
        launch(KERNEL);
        pass_until(time_now + PERIOD);
        CHECK(the_gate()->head == the_gate()->tail);
        end_context(context_now ? context_now : (CUcontext)tenant);
    }
}

/* What is done in one stream is known, once, though another one's work goes on. */
static void streams(void)
{
    learn();
    launch(FOR_EVER);
    uint64_t used = account()->used_ns;
    for (uintptr_t i = 1; i < 4; i++) {
        stream_now = (CUstream)(16 * i);
        launch_as(100 + i, KERNEL, CUDA_SUCCESS);
    }
    pass_until(time_now + 2 * KERNEL);
    CHECK(the_gate()->head != the_gate()->tail && account()->used_ns > used);
    used = account()->used_ns;
    uint64_t time = estimate_of(101)->time;
    CHECK(estimate_of(101)->samples == 1 && estimate_of(103)->samples == 1);
    for (int i = 0; i < 5; i++)
        pass_until(time_now + KERNEL);
    CHECK(account()->used_ns == used);
    CHECK(estimate_of(101)->samples == 1 && estimate_of(101)->time == time);
}

/* What is never done holds up nobody for more than a second, whatever the account says. */
static void stuck(void)
{
    learn();
    launch(SLOT + 10 * AP_MILLI);
    launch(FOR_EVER);
    pass_until(BEGIN + PERIOD + SLOT + 20 * AP_MILLI);
    uint64_t from = the_gate()->progress; /* between two slots */
    account()->carry_ns = -(int64_t)AP_DEBT_MAX;
    CHECK(from % PERIOD > SLOT);
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

/* It goes beside work that is late, where there is room. */
static void trial(void)
{
    set_slot(10 * PERIOD, 5 * PERIOD);
    learn();
    uint64_t from = time_now;
    launch_as(3, FOR_EVER, CUDA_SUCCESS);
    launch_as(3, FOR_EVER, CUDA_SUCCESS);
    CHECK(time_now - from >= 100 * AP_MILLI && time_now - from < 200 * AP_MILLI);
}

#define MOST_OF_IT (45 * AP_MILLI) /* of the slot */

/* In each slot another thread comes first. */
static void comes_first(void)
{
    static uint64_t last;
    if (time_now / PERIOD > last && time_now % PERIOD < SLOT / 10) {
        last = time_now / PERIOD;
        launch_as(MOST_OF_IT, MOST_OF_IT, CUDA_SUCCESS);
    }
    account()->carry_ns = 0; /* or enough would be owed for both by and by */
    rival = comes_first;
}

/* Who has waited for ten periods goes before others. */
static void patient(void)
{
    learn();
    for (int i = 2; i < 4; i++) {
        launch_as(i == 2 ? MOST_OF_IT : SLOT / 2, i == 2 ? MOST_OF_IT : SLOT / 2, CUDA_SUCCESS);
        pass_until(BEGIN + (uint64_t)i * PERIOD);
    }
    comes_first();
    uint64_t from = time_now;
    launch_as(SLOT / 2, SLOT / 2, CUDA_SUCCESS);
    CHECK(time_now - from >= 10 * PERIOD && time_now - from < 13 * PERIOD);
}

static uint32_t marks_of(uint64_t key, uint64_t length, unsigned count, uint64_t every)
{
    uint32_t before = the_gate()->tail;
    for (unsigned i = 0; i < count; i++) {
        launch_as(key, length, CUDA_SUCCESS);
        sim_pass(every);
    }
    return the_gate()->tail - before;
}

/* Events follow often enough: for what is short, for many kinds, and at the slot's end. */
static void events(void)
{
    learn();
    for (uint64_t key = 2; key < 100; key++) {
        launch_as(key, AP_MICRO, CUDA_SUCCESS);
        pass_until(time_now + AP_MILLI / 10);
    }
    pass_until(BEGIN + 2 * PERIOD);
    CHECK(marks_of(2, AP_MICRO, 20, AP_MILLI / 10) >= 3);
    CHECK(marks_of(2, AP_MICRO, 20, AP_MICRO) <= 2);
    for (uint64_t key = 2; key < 100; key++)
        launch_as(key, AP_MICRO, CUDA_SUCCESS);
    CHECK(the_gate()->open.count < 99 - AP_ITEMS);
    pass_until(time_now + AP_MILLI);
    launch_as(SHORT, SHORT, CUDA_SUCCESS);
    pass_until(BEGIN + 2 * PERIOD + SLOT - 9 * SHORT);
    CHECK(marks_of(SHORT, SHORT, 4, SHORT) >= 3);
}

/* Time that nobody waited for is not owed. */
static void idle(void)
{
    learn();
    pass_until(BEGIN + PERIOD + SLOT + AP_MILLI);
    launch(KERNEL);
    CHECK(account()->waited_ns > 0);
    pass_until(time_now + SLOT - 3 * KERNEL);
    launch(KERNEL);
    CHECK(account()->carry_ns < (int64_t)AP_MILLI);
}

#define LONG (SLOT + 10 * AP_MILLI)

/* What is longer than the slot waits for what other processes of the share have queued. */
static void others(void)
{
    tenant = &tenants[1];
    launch_as(LONG, LONG, CUDA_SUCCESS);
    pass_until(BEGIN + 10 * PERIOD);
    CHECK(estimate_of(LONG)->samples == 1);
    account()->carry_ns = 0;
    tenant = &tenants[0];
    launch(4 * KERNEL);
    pass_until(BEGIN + 11 * PERIOD);
    launch(4 * KERNEL);
    tenant = &tenants[1];
    launch_as(LONG, LONG, CUDA_SUCCESS);
    CHECK(time_now >= BEGIN + 11 * PERIOD + 4 * KERNEL);
    CHECK(account()->waited_ns > KERNEL);
}

static void the_other_one_too(void)
{
    tenant = &tenants[1];
    launch(KERNEL);
    tenant = &tenants[0];
}

/* What lies idle while two wait is owed once. */
static void owed(void)
{
    learn();
    tenant = &tenants[1];
    launch(KERNEL);
    tenant = &tenants[0];
    pass_until(BEGIN + 2 * PERIOD + SLOT - KERNEL / 2);
    rival = the_other_one_too;
    launch(KERNEL);
    CHECK(rival == NULL && time_now >= BEGIN + 3 * PERIOD);
    CHECK(account()->carry_ns > (int64_t)KERNEL / 4);
    CHECK(account()->carry_ns < (int64_t)KERNEL * 3 / 4);
}

/* No time to come in the ledger keeps what is owed from being counted. */
static void forged(void)
{
    learn();
    pass_until(BEGIN + PERIOD + SLOT - KERNEL / 2);
    account()->given_until_ns = time_now + 100 * SECOND;
    launch(KERNEL);
    CHECK(account()->carry_ns > (int64_t)KERNEL / 4);
    uint64_t from = time_now;
    account()->carry_ns = INT64_MAX;
    launch(KERNEL);
    CHECK(time_now < from + AP_MILLI);
    account()->carry_ns = INT64_MIN;
    launch(KERNEL);
    CHECK(time_now < from + 2 * AP_DEBT_MAX + 2 * PERIOD); /* half of the time is the share's */
}

/* While the GPU works nothing is owed, though work takes longer than it should. */
static void busy(void)
{
    learn();
    launch_as(MOST_OF_IT, MOST_OF_IT, CUDA_SUCCESS);
    pass_until(BEGIN + 2 * PERIOD);
    for (int i = 0; i < 3; i++)
        launch(KERNEL);
    launch(SLOT / 2);
    launch_as(MOST_OF_IT, MOST_OF_IT, CUDA_SUCCESS);
    CHECK(time_now >= BEGIN + 3 * PERIOD);
    CHECK(account()->carry_ns <= (int64_t)SLOT / 2);
}

/* Without memory for what the library knows, nobody can say that nothing is limited. */
static void memory(void)
{
    struct ap_pass pass;
    tenant->process = NULL;
    atomic_store(&ap_gates_exist, false);
    ap_gates_look();
    CHECK(ap_gates_on());
    CHECK(ap_gate_enter(&pass, KERNEL, NULL, false) == CUDA_ERROR_OUT_OF_MEMORY);
}

const struct gatecase cases[] = {
    {"late", late}, {"loading", loading}, {"ending", ending}, {"refused", refused},
    {"graph", graph}, {"context", context}, {"stuck", stuck},
    {"alone", alone}, {"memory", memory}, {"trial", trial},
    {"patient", patient}, {"events", events}, {"idle", idle},
    {"others", others}, {"owed", owed},
    {"forged", forged}, {"busy", busy}, {"streams", streams},
    {NULL, NULL},
};
