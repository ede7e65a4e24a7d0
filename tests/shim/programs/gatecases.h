/* What the files of the gate's cases share: a GPU that does one piece of work after the other, in
 * simulated time, and processes of one share. */
#ifndef GATECASES_H
#define GATECASES_H

#include <stdio.h>
#include <stdlib.h>

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
#define SHORT (50 * AP_MICRO)
#define FOR_EVER (1000 * SECOND)


extern struct tenant *tenant, tenants[2]; /* the process that runs; those of the share */
extern uint64_t time_now, reads;          /* of the clock */
extern uint64_t call_takes;               /* the driver's call, before the GPU has the work */
extern uint32_t works;                    /* done or to be done */
extern CUstream stream_now;               /* NULL: its work waits for what came before */
extern void (*rival)(void); /* comes in as soon as the time was read and the gate is not locked */

struct ap_gate *the_gate(void);
struct apportion_ledger_cores *account(void);
const struct ap_estimate *estimate_of(uint64_t key);

void set_slot(uint64_t period, uint64_t length); /* at the period's beginning */

/* With the driver's `result`; `length` is how long it takes. */
void launch_as(uint64_t key, uint64_t length, CUresult result);
void launch(uint64_t length); /* of the kind KERNEL */
void pass_until(uint64_t when); /* and look what is done */

extern const struct gatecase {
    const char *name;
    void (*run)(void);
} cases[]; /* gatecases_all.c; a name of NULL ends them */

#endif
