/* A GPU: its queues take turns by time slices while more than one has work. */
#include <stdlib.h>

#include "gatesim.h"

enum { MARKS = 1 << 16 };

static struct queue {
    uint64_t submitted, events;
    double served;
    uint64_t marks, looked;       /* borders between pieces of work: when each was passed */
    uint64_t *border, *passed;
} queues[TENANTS];
static uint64_t at, slice_end, ready;
static unsigned turn;

static bool waits(const struct queue *queue)
{
    return (double)queue->submitted - queue->served > 0.5;
}

static bool next_turn(void)
{
    for (unsigned step = 1; step <= TENANTS; step++)
        if (waits(&queues[(turn + step) % TENANTS])) {
            unsigned next = (turn + step) % TENANTS;
            ready = next == turn ? at : at + SWITCH_NS;
            turn = next;
            slice_end = at + SLICE_NS;
            return true;
        }
    return false;
}

static void serve(struct queue *queue, uint64_t until)
{
    double need = (double)queue->submitted - queue->served;
    uint64_t end = at + (uint64_t)(need + 0.5) < until ? at + (uint64_t)(need + 0.5) : until;
    while (queue->looked < queue->marks &&
           (double)queue->border[queue->looked % MARKS] <= queue->served + (double)(end - at) + 0.5) {
        double before = (double)queue->border[queue->looked % MARKS] - queue->served;
        queue->passed[queue->looked++ % MARKS] = at + (before > 0 ? (uint64_t)before : 0);
    }
    queue->served += (double)(end - at);
    if (queue->served > (double)queue->submitted)
        queue->served = (double)queue->submitted;
    at = end;
}

static void advance(uint64_t now)
{
    while (at < now) {
        if ((at >= slice_end || !waits(&queues[turn])) && !next_turn()) {
            at = now;
            return;
        }
        uint64_t until = now < slice_end ? now : slice_end;
        if (at < ready)
            at = until < ready ? until : ready;
        else
            serve(&queues[turn], until);
    }
}

void gpu_submit(unsigned number, uint64_t length)
{
    struct queue *queue = &queues[number];
    advance(sim_now());
    if (!queue->border) {
        queue->border = calloc(MARKS, sizeof *queue->border);
        queue->passed = calloc(MARKS, sizeof *queue->passed);
    }
    queue->submitted += length;
    queue->border[queue->marks++ % MARKS] = queue->submitted;
}

/* It waits for its queue's turn as all work does (H200: up to 2.2 ms beside another context). */
void gpu_submit_event(unsigned number)
{
    gpu_submit(number, EVENT_NS);
    queues[number].events += EVENT_NS;
}

uint64_t gpu_submitted(unsigned queue)
{
    return queues[queue].submitted;
}

uint64_t gpu_done_at(unsigned number, uint64_t work)
{
    const struct queue *queue = &queues[number];
    advance(sim_now());
    uint64_t end = queue->looked, first = end > MARKS ? end - MARKS : 0;
    while (first < end) {
        uint64_t middle = first + (end - first) / 2;
        if (queue->border[middle % MARKS] < work)
            first = middle + 1;
        else
            end = middle;
    }
    return first < queue->looked ? queue->passed[first % MARKS] : 0;
}

void gpu_wait(unsigned number)
{
    uint64_t work = queues[number].submitted, done;
    while (!(done = gpu_done_at(number, work))) {
        double left = (double)work - queues[number].served;
        sim_pass(left > 20000 ? (uint64_t)(left / 2) : 1000);
    }
    sim_sleep_until(done + WAKE_NS);
}

double gpu_served(unsigned queue)
{
    return queues[queue].served - (double)queues[queue].events;
}
