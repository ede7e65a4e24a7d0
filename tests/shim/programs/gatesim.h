/* What the files of the simulation of the gate share. */
#ifndef GATESIM_H
#define GATESIM_H

#include <stdbool.h>
#include <stdint.h>
#include <ucontext.h>

#include "gate.h"
#include "gate_state.h"

enum { TASKS = 64, TENANTS = 32, LENGTHS = 8 };
enum {
    LAUNCH_NS = 3000,   /* of a processor, for a launch */
    HOST_NS = 2000,     /* after a wait */
    WAKE_NS = 8000,     /* from the work's end to the thread that waits for it */
    LATE_NS = 55000,    /* that a sleep takes too long, and up to as much again */
    CLOCK_NS = 40,
    SLICE_NS = 2000000, /* contexts take turns by these */
    SWITCH_NS = 180000, /* that nothing runs in meanwhile */
    EVENT_NS = 2100,    /* of the GPU, for an event */
};

struct share_files {
    struct apportion_schedule schedule;
    struct {
        struct apportion_ledger_header header;
        struct apportion_ledger_cores cores;
        struct apportion_ledger_slot slots[8];
    } ledger;
};

struct tenant {
    uint64_t length[LENGTHS], batch;
    unsigned lengths, graph, queue;
    bool gated, first;
    struct share_files *files;
    struct ap_process *process;
    const char *text;
};

struct task {
    struct tenant *tenant;
    uint64_t now, turn;
    ucontext_t context;
};

struct tenant *sim_tenant(void);
uint64_t sim_now(void);
void sim_pass(uint64_t time);          /* of the thread that runs */
void sim_sleep_until(uint64_t when);
uint64_t sim_random(uint64_t below);

/* gatesim_gpu.c: queues of work, first come first served in each. */
void gpu_submit(unsigned queue, uint64_t length);
void gpu_submit_event(unsigned queue);
uint64_t gpu_submitted(unsigned queue);          /* work, ever */
uint64_t gpu_done_at(unsigned queue, uint64_t work); /* when that much was done; 0: not yet */
void gpu_wait(unsigned queue);
double gpu_served(unsigned queue);              /* of it, events left out */

/* gatesim_process.c: what the gate finds around it. */
void process_make(struct tenant *tenant, unsigned slot);
extern CUcontext context_now; /* NULL: the process's first one */
void context_end(CUcontext context); /* with its events: who uses one of those is ended */

#endif
