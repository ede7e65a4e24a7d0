#include "estimate.h"

#include <stddef.h>

#define WAYS 4u       /* places that a key may have */
#define SLOWLY 8      /* samples that a time is the mean of */
#define QUICKLY 2     /* when it seems to have changed */
#define CHANGED 2.0   /* times longer or shorter */
#define BELIEVED 3u   /* measurements in a row that say so much longer */
#define NOISE 500e3   /* ns that others' work adds to a measurement now and then */
#define UNCLEAN 4u    /* measurements in a row that leave a time in doubt */
#define MIXED 0.25    /* that an estimate changes by, at most, when there are several */

static uint64_t mixed(uint64_t number)
{
    number = (number ^ number >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return number ^ number >> 29;
}

/* Half octaves: the two bits below the highest one are half of the distance to the next. */
static uint64_t size_class(uint64_t blocks)
{
    if (blocks < 2)
        return blocks;
    int high = 63 - __builtin_clzll(blocks);
    return (uint64_t)high * 2 + (blocks >> (high - 1) & 1);
}

uint64_t ap_estimate_key(const void *function, uint64_t blocks)
{
    return mixed((uint64_t)(uintptr_t)function * UINT64_C(0x9e3779b97f4a7c15) +
                 size_class(blocks) + 1) | 1;
}

static uint32_t first_place(uint64_t key)
{
    return (uint32_t)(mixed(key) % (AP_ESTIMATES / WAYS)) * WAYS;
}

uint32_t ap_estimate_place(struct ap_estimates *estimates, uint64_t key)
{
    uint32_t first = first_place(key), place = first;
    for (uint32_t i = first; i < first + WAYS; i++) {
        if (estimates->of[i].key == key)
            return i;
        if (estimates->of[i].samples < estimates->of[place].samples)
            place = i;
    }
    estimates->of[place] = (struct ap_estimate){.key = key};
    return place;
}

void ap_estimate_forget(struct ap_estimates *estimates, uint64_t key)
{
    uint32_t first = first_place(key);
    for (uint32_t i = first; i < first + WAYS; i++)
        if (estimates->of[i].key == key) /* no measurement that is under way is to find it */
            estimates->of[i] = (struct ap_estimate){.key = 0};
}

/* NULL: its place was taken by another meanwhile. */
static struct ap_estimate *of(struct ap_estimates *estimates, const struct ap_item *item)
{
    struct ap_estimate *estimate = &estimates->of[item->place];
    return estimate->key == item->key ? estimate : NULL;
}

static bool is_known(const struct ap_estimates *estimates, const struct ap_item *item)
{
    const struct ap_estimate *estimate = &estimates->of[item->place];
    return estimate->key == item->key && estimate->samples > 0;
}

uint64_t ap_estimate_sum(const struct ap_estimates *estimates, const struct ap_item *items,
                         uint32_t count, uint64_t unknown)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool known = is_known(estimates, &items[i]);
        sum += items[i].count * (known ? estimates->of[items[i].place].time : unknown);
    }
    return sum;
}

bool ap_estimate_all_known(const struct ap_estimates *estimates, const struct ap_item *items,
                           uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!is_known(estimates, &items[i]))
            return false;
    return true;
}

/* What the known ones leave is the unknown ones'. */
static void learn_new(struct ap_estimates *estimates, const struct ap_item *items, uint32_t count,
                      uint64_t took)
{
    uint64_t known = ap_estimate_sum(estimates, items, count, 0), launches = 0;
    for (uint32_t i = 0; i < count; i++)
        launches += is_known(estimates, &items[i]) ? 0 : items[i].count;
    uint64_t each = launches && took > known ? (took - known) / launches : 1;
    for (uint32_t i = 0; i < count; i++) {
        struct ap_estimate *estimate = of(estimates, &items[i]);
        if (!estimate || estimate->samples > 0)
            continue;
        estimate->time = each;
        estimate->samples = 1;
    }
}

/* Sum of squares of what each kind takes of what was expected for all. */
static double concentration(const struct ap_estimates *estimates, const struct ap_item *items,
                            uint32_t count, double expected)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        double part = (double)ap_estimate_sum(estimates, &items[i], 1, 0) / expected;
        sum += part * part;
    }
    return sum > 0 ? sum : 1;
}

/* How much of the way an estimate goes to what was measured. Work that took longer than it does by
 * itself had others beside it, or waited; nothing makes it shorter. So what is shorter is believed
 * at once, what is longer the less the less work was measured, and quickly only when it goes on. */
static double trust(struct ap_estimate *estimate, double expected, double factor, bool alone)
{
    double inertia = estimate->samples < SLOWLY ? estimate->samples + 1 : SLOWLY;
    bool longer = factor > CHANGED;
    estimate->longer = !longer ? 0 : estimate->longer < BELIEVED ? estimate->longer + 1 : BELIEVED;
    bool changed = longer ? estimate->longer == BELIEVED : factor < 1 / CHANGED;
    if (alone && changed && inertia > QUICKLY)
        inertia = QUICKLY;
    if (factor > 1 && estimate->unclean > 0 && estimate->unclean < UNCLEAN)
        return 0;
    return factor > 1 && !changed ? expected / (expected + NOISE) / inertia : 1 / inertia;
}

/* The estimates grow or shrink part of the way, those the more that take more of the time (least
 * mean squares, of logarithms). */
static void learn_known(struct ap_estimates *estimates, const struct ap_item *items,
                        uint32_t count, uint64_t took)
{
    double expected = (double)ap_estimate_sum(estimates, items, count, 0) + 1;
    double factor = (double)took / expected;
    double whole = concentration(estimates, items, count, expected);
    for (uint32_t i = 0; i < count; i++) {
        struct ap_estimate *estimate = &estimates->of[items[i].place];
        double part = (double)ap_estimate_sum(estimates, &items[i], 1, 0) / expected;
        double time = (double)estimate->time, step = (factor - 1) * (part / whole);
        step *= trust(estimate, expected, factor, count == 1);
        if (count > 1 && step > MIXED)
            step = MIXED;
        else if (count > 1 && step < -MIXED)
            step = -MIXED;
        estimate->time = (uint64_t)(time + time * step);
        if (estimate->time == 0)
            estimate->time = 1;
        if (estimate->samples < UINT32_MAX)
            estimate->samples++;
    }
}

void ap_estimate_learn(struct ap_estimates *estimates, const struct ap_item *items, uint32_t count,
                       uint64_t took)
{
    if (ap_estimate_all_known(estimates, items, count))
        learn_known(estimates, items, count, took);
    else
        learn_new(estimates, items, count, took);
    for (uint32_t i = 0; i < count; i++)
        if (of(estimates, &items[i]))
            of(estimates, &items[i])->trials = 0;
}

void ap_estimate_measured(struct ap_estimates *estimates, const struct ap_item *items,
                          uint32_t count, bool clean)
{
    for (uint32_t i = 0; i < count; i++) {
        struct ap_estimate *estimate = of(estimates, &items[i]);
        if (!estimate)
            continue;
        if (clean)
            estimate->unclean = 0;
        else if (estimate->unclean < UNCLEAN)
            estimate->unclean++;
    }
}

bool ap_estimate_is_clean(const struct ap_estimates *estimates, const struct ap_item *items,
                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!is_known(estimates, &items[i]) ||
            estimates->of[items[i].place].unclean == UNCLEAN)
            return false;
    return true;
}

void ap_estimate_assume(struct ap_estimates *estimates, const struct ap_item *items, uint32_t count,
                        uint64_t assumed)
{
    for (uint32_t i = 0; i < count; i++) {
        struct ap_estimate *estimate = of(estimates, &items[i]);
        if (!estimate)
            continue;
        estimate->trials = 0;
        if (estimate->samples > 0)
            continue;
        estimate->time = assumed;
        estimate->samples = 1;
    }
}
