/* The gate's arithmetic: calendar, estimates, decisions; and one whole state of a schedule. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "../../../shim/src/common/schedule.h"
#include "calendar.h"
#include "estimate.h"
#include "gate_math.h"
#include "parts.h"

#define SHORT 200u /* nanoseconds of a period that is looked through one by one */

static struct apportion_schedule_state random_state(unsigned *seed, uint64_t period)
{
    struct apportion_schedule_state state = {.period_ns = period, .own_count = 0};
    uint64_t at = (uint64_t)rand_r(seed) % 3 * 5;
    while (at < period && state.own_count + state.guest_count < 12) {
        uint64_t most = period - at, length = 1 + (uint64_t)rand_r(seed) % (most < 40 ? most : 40);
        bool own = state.own_count == 0 || rand_r(seed) % 2;
        if (own)
            state.own[state.own_count++] = (struct apportion_slot_time){at, length};
        else
            state.guest[state.guest_count++] = (struct apportion_slot_time){at, length};
        at += length + (uint64_t)rand_r(seed) % 3 * 7;
    }
    state.guest_until_ns = (uint64_t)rand_r(seed) % (4 * period);
    return state;
}

static bool is_in(const struct apportion_slot_time *slots, uint32_t count, uint64_t place)
{
    for (uint32_t i = 0; i < count; i++)
        if (place >= slots[i].start_ns && place < slots[i].start_ns + slots[i].length_ns)
            return true;
    return false;
}

static bool may(const struct apportion_schedule_state *state, uint64_t now, bool guests)
{
    uint64_t place = now % state->period_ns;
    return is_in(state->own, state->own_count, place) ||
           (guests && now < state->guest_until_ns &&
            is_in(state->guest, state->guest_count, place));
}

static void compare(const struct apportion_schedule_state *state, unsigned *seed)
{
    struct ap_calendar calendar;
    ap_calendar_make(&calendar, state, 1);
    uint64_t own = 0, allowed = 0, from = (uint64_t)rand_r(seed) % SHORT;
    for (uint64_t now = from; now < 6 * SHORT; now++) {
        struct ap_window window = ap_calendar_at(&calendar, now);
        CHECK(ap_calendar_own(&calendar, from, now) == own);
        CHECK(ap_calendar_allowed(&calendar, from, now) == allowed);
        own += may(state, now, false);
        allowed += may(state, now, true);
        CHECK(window.open == may(state, now, true));
        CHECK(window.to > now && (!window.open || window.from <= now));
        for (uint64_t then = now; then < window.to && then < now + SHORT; then++)
            CHECK(may(state, then, true) == window.open);
        for (uint64_t then = now; window.open && then > window.from; then--)
            CHECK(may(state, then, false) || may(state, then, true) || then == now);
    }
}

void test_calendar(unsigned seed)
{
    for (int i = 0; i < 300; i++) {
        struct apportion_schedule_state state = random_state(&seed, SHORT);
        CHECK(ap_schedule_is_good(&state));
        compare(&state, &seed);
    }
    struct apportion_schedule_state two[2] = {
        {.period_ns = 100, .own_count = 1, .own = {{0, 30}}},
        {.period_ns = 100, .own_count = 2, .own = {{30, 20}, {90, 10}}}};
    struct ap_calendar calendar;
    ap_calendar_make(&calendar, two, 2);
    CHECK(calendar.own.total == 60);
    struct ap_window window = ap_calendar_at(&calendar, 1005);
    CHECK(window.open && window.from == 990 && window.to == 1050);
    window = ap_calendar_at(&calendar, 995);
    CHECK(window.open && window.from == 990 && window.to == 1050);
    two[1].period_ns = 200;
    ap_calendar_make(&calendar, two, 2);
    CHECK(calendar.own.total == 30);
}

static uint64_t mixed_up(uint64_t number)
{
    return ap_estimate_key((const void *)(uintptr_t)(number << 4), 1);
}

void test_estimates(unsigned seed)
{
    static struct ap_estimates estimates;
    int one = 0, other = 0;
    uint64_t keys[2] = {ap_estimate_key(&one, 100), ap_estimate_key(&other, 100)};
    CHECK(keys[0] != keys[1] && keys[0] != ap_estimate_key(&one, 200));
    CHECK(keys[0] == ap_estimate_key(&one, 110));
    struct ap_item items[2] = {{keys[0], ap_estimate_place(&estimates, keys[0]), 1},
                               {keys[1], ap_estimate_place(&estimates, keys[1]), 1}};
    CHECK(!ap_estimate_all_known(&estimates, items, 2));
    CHECK(ap_estimate_sum(&estimates, items, 2, 7) == 14);
    ap_estimate_learn(&estimates, items, 1, 10000);
    ap_estimate_learn(&estimates, items, 2, 60000);
    CHECK(ap_estimate_sum(&estimates, items, 2, 0) == 60000);
    CHECK(estimates.of[items[1].place].time == 50000);
    for (int i = 0; i < 400; i++) {
        items[0].count = 1 + (uint32_t)rand_r(&seed) % 9;
        items[1].count = (uint32_t)rand_r(&seed) % 4;
        ap_estimate_learn(&estimates, items, 2, items[0].count * 30000 + items[1].count * 400000);
    }
    CHECK(labs((long)estimates.of[items[0].place].time - 30000) < 6000);
    CHECK(labs((long)estimates.of[items[1].place].time - 400000) < 40000);
    for (unsigned i = 0; i < 3; i++)
        ap_estimate_measured(&estimates, items, 2, false);
    CHECK(ap_estimate_is_clean(&estimates, items, 2));
    ap_estimate_measured(&estimates, items, 2, false);
    CHECK(!ap_estimate_is_clean(&estimates, items, 2));
    ap_estimate_measured(&estimates, items, 1, true);
    CHECK(ap_estimate_is_clean(&estimates, items, 1));
    CHECK(!ap_estimate_is_clean(&estimates, items, 2));
    ap_estimate_forget(&estimates, keys[1]);
    CHECK(!ap_estimate_all_known(&estimates, items, 2));
    ap_estimate_learn(&estimates, items, 2, 7000); /* was under way */
    CHECK(items[1].place == ap_estimate_place(&estimates, keys[1]));
    CHECK(!ap_estimate_all_known(&estimates, items, 2));
    ap_estimate_assume(&estimates, items, 2, 123);
    CHECK(estimates.of[items[1].place].time == 123);
    /* What is not known is forgotten at nobody's cost. */
    for (uint64_t i = 0; i < 4 * AP_ESTIMATES; i++)
        ap_estimate_forget(&estimates, ap_estimate_key(&one, i << 32 | i));
    CHECK(ap_estimate_all_known(&estimates, items, 2));
    for (uint64_t i = 0; i < 4 * AP_ESTIMATES; i++) {
        uint64_t key = mixed_up(i);
        struct ap_estimate *taken = &estimates.of[ap_estimate_place(&estimates, key)];
        CHECK(taken->key == key && taken->samples == 0 && taken->trials == 0);
        *taken = (struct ap_estimate){.key = key, .time = 5, .samples = 1, .trials = 1};
    }
}

/* One measurement of several kinds that went astray changes none of them by much. */
void test_mixed(unsigned seed)
{
    static struct ap_estimates estimates;
    struct ap_item items[2] = {{3, ap_estimate_place(&estimates, 3), 1},
                               {5, ap_estimate_place(&estimates, 5), 1}};
    (void)seed;
    for (unsigned i = 0; i < 2; i++)
        ap_estimate_learn(&estimates, &items[i], 1, 1000);
    ap_estimate_learn(&estimates, items, 2, 1000000);
    CHECK(estimates.of[items[0].place].time <= 1250);
    ap_estimate_learn(&estimates, items, 2, 1);
    CHECK(estimates.of[items[1].place].time >= 900);
}

/* What others' work adds to a measurement now and then says little, the less work it measured; what
 * goes on is believed soon, and what is shorter at once. */
void test_what_takes_longer_once(unsigned seed)
{
    static struct ap_estimates estimates;
    int one = 0;
    struct ap_item item = {.key = ap_estimate_key(&one, 1), .count = 1};
    item.place = ap_estimate_place(&estimates, item.key);
    uint64_t *time = &estimates.of[item.place].time;
    for (int i = 0; i < 200; i++) {
        ap_estimate_learn(&estimates, &item, 1, 40000 + (i % 8 == 7 ? 400000 : 0));
        item.count = 1 + (uint32_t)rand_r(&seed) % 2;
        ap_estimate_learn(&estimates, &item, 1, item.count * 40000);
        CHECK(*time > 39000 && *time < 48000);
        item.count = 1;
    }
    item.count = 12;
    for (int i = 0; i < 8; i++)
        ap_estimate_learn(&estimates, &item, 1, 12 * 400000);
    CHECK(*time > 300000 && *time < 410000);
    for (int i = 0; i < 4; i++)
        ap_estimate_learn(&estimates, &item, 1, 12 * 40000);
    CHECK(*time < 80000);
    item.count = 1;
    *time = 1; /* it was measured wrongly */
    for (int i = 0; i < 5; i++)
        ap_estimate_learn(&estimates, &item, 1, 5000000);
    CHECK(*time > 2000000);
}

static enum ap_launch_answer answer(struct ap_launch_question question)
{
    uint64_t until = 0;
    enum ap_launch_answer given = ap_launch_may(&question, &until);
    CHECK(given == AP_GO || until > question.now);
    return given;
}

void test_launches(unsigned seed)
{
    (void)seed;
    struct ap_launch_question start = {.window = {true, 1000 * AP_MILLI, 1030 * AP_MILLI},
                                       .now = 1000 * AP_MILLI + 50 * AP_MICRO,
                                       .estimate = 5 * AP_MILLI}, q = start;
    CHECK(answer(q) == AP_GO);
    q.left = 26 * AP_MILLI;
    CHECK(answer(q) == AP_NO_ROOM);
    q.carry = 2 * (int64_t)AP_MILLI;
    CHECK(answer(q) == AP_DEEP);
    q.left = 2 * AP_MILLI;
    CHECK(answer(q) == AP_GO);
    q.carry = -(int64_t)AP_MILLI;
    CHECK(answer(q) == AP_IN_DEBT);
    q = start, q.estimate = 500 * AP_MILLI;
    CHECK(answer(q) == AP_GO);
    q.now += 10 * AP_MILLI;
    CHECK(answer(q) == AP_NO_ROOM);
    q.carry = 10 * (int64_t)AP_MILLI;
    CHECK(answer(q) == AP_GO);
    q = start, q.window.open = false;
    CHECK(answer(q) == AP_CLOSED);
    q = start, q.now = q.window.to - 4 * AP_MILLI, q.left = AP_MILLI / 2;
    CHECK(answer(q) == AP_NO_ROOM);
    q.estimate = 3 * AP_MILLI;
    CHECK(answer(q) == AP_GO);
    CHECK(ap_carry_after(5, 7, 10) == 10 && ap_carry_after(INT64_MAX, 7, 10) == 10);
    CHECK(ap_carry_after(-5, INT64_MIN, 10) == -(int64_t)AP_DEBT_MAX);
    CHECK(ap_work_left(100, 50, 120, true) == 30 && ap_work_left(100, 50, 200, false) == 0);
    CHECK(ap_work_left(100, 50, 200, true) == 25 && ap_work_left(100, 50, 90, false) == 50);
    CHECK(ap_overrun_paid(50, 50, 20) == 20 && ap_overrun_paid(70, 50, 40) == 20);
    CHECK(ap_overrun_paid(70, 0, 40) == 40 && ap_overrun_paid(90, 50, 20) == 10);
}

static struct apportion_schedule shared;
static atomic_bool over;

/* As the plugin writes: the copy not in force, then the generation. */
static void *write_states(void *nothing)
{
    for (uint64_t period = 2; period < 20000; period++) {
        uint64_t generation = shared.generation + 1;
        struct apportion_schedule_state *state = &shared.state[generation & 1];
        __atomic_store_n(&state->period_ns, period * 1000, __ATOMIC_RELAXED);
        __atomic_store_n(&state->own_count, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&state->own[0].length_ns, period, __ATOMIC_RELAXED);
        atomic_store_explicit(&shared.generation, generation, memory_order_release);
    }
    atomic_store(&over, true);
    return nothing;
}

void test_schedule(unsigned seed)
{
    struct apportion_schedule_state state;
    uint64_t generation, last = 0;
    pthread_t writer;
    (void)seed;
    CHECK(!ap_schedule_read(&shared, &state, &generation));
    CHECK(pthread_create(&writer, NULL, write_states, NULL) == 0);
    while (!atomic_load(&over)) {
        if (!ap_schedule_read(&shared, &state, &generation))
            continue;
        CHECK(state.period_ns == state.own[0].length_ns * 1000 && generation >= last);
        last = generation;
    }
    CHECK(pthread_join(writer, NULL) == 0);
    state.own[0].start_ns = state.period_ns;
    CHECK(!ap_schedule_is_good(&state));
    state.own[0] = (struct apportion_slot_time){1, state.period_ns};
    CHECK(!ap_schedule_is_good(&state));
    state.own_count = APPORTION_SCHEDULE_SLOTS + 1;
    CHECK(!ap_schedule_is_good(&state));
}
