/* Prints the ledger's layout as the compiler sees it, as JSON. */
#include <stdio.h>

#include "apportion/ledger.h"
#include "apportion/limits.h"

#define HEAD(field) printf("\"header.%s\": %zu, ", #field, \
                           offsetof(struct apportion_ledger_header, field))
#define SLOT(field) printf("\"slot.%s\": %zu, ", #field, \
                           offsetof(struct apportion_ledger_slot, field))
#define CORES(field) printf("\"cores.%s\": %zu, ", #field, \
                            offsetof(struct apportion_ledger_cores, field))
#define NUMBER(name) printf("\"%s\": %llu, ", #name, (unsigned long long)(APPORTION_##name))

int main(void)
{
    printf("{");
    HEAD(magic), HEAD(version), HEAD(header_size), HEAD(slot_size), HEAD(slot_count);
    HEAD(total), HEAD(denied), HEAD(peak), HEAD(dirty), HEAD(clean), HEAD(top), HEAD(context_mib);
    SLOT(seq), SLOT(used), SLOT(pid), SLOT(started), SLOT(namespace), SLOT(died);
    SLOT(busy_until_ns), SLOT(object);
    CORES(used_ns), CORES(waited_ns), CORES(overrun_ns), CORES(wanted_ns), CORES(carry_ns);
    CORES(given_until_ns), CORES(taken_until_ns), NUMBER(LEDGER_CORES_OFFSET);
    NUMBER(LEDGER_MAGIC), NUMBER(LEDGER_VERSION), NUMBER(LEDGER_HEADER_SIZE);
    NUMBER(LEDGER_SLOT_SIZE), NUMBER(LEDGER_SLOT_COUNT), NUMBER(LEDGER_SLOTS_OFFSET);
    NUMBER(LEDGER_SIZE), NUMBER(LEDGER_LOCK_SWEEP), NUMBER(LEDGER_LOCK_SLOTS);
    printf("\"sizeof header\": %zu, \"sizeof slot\": %zu, \"sizeof cores\": %zu}\n",
           sizeof(struct apportion_ledger_header), sizeof(struct apportion_ledger_slot),
           sizeof(struct apportion_ledger_cores));
    return 0;
}
