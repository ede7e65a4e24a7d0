/* Prints the ledger's layout as the compiler sees it, as JSON. */
#include <stdio.h>

#include "apportion/ledger.h"
#include "apportion/limits.h"

#define HEAD(field) printf("\"header.%s\": %zu, ", #field, \
                           offsetof(struct apportion_ledger_header, field))
#define SLOT(field) printf("\"slot.%s\": %zu, ", #field, \
                           offsetof(struct apportion_ledger_slot, field))
#define NUMBER(name) printf("\"%s\": %llu, ", #name, (unsigned long long)(APPORTION_##name))

int main(void)
{
    printf("{");
    HEAD(magic), HEAD(version), HEAD(header_size), HEAD(slot_size), HEAD(slot_count);
    HEAD(total), HEAD(denied), HEAD(peak), HEAD(dirty), HEAD(clean), HEAD(top), HEAD(context_mib);
    SLOT(seq), SLOT(used), SLOT(pid), SLOT(started), SLOT(namespace), SLOT(object);
    NUMBER(LEDGER_MAGIC), NUMBER(LEDGER_VERSION), NUMBER(LEDGER_HEADER_SIZE);
    NUMBER(LEDGER_SLOT_SIZE), NUMBER(LEDGER_SLOT_COUNT), NUMBER(LEDGER_SLOTS_OFFSET);
    NUMBER(LEDGER_SIZE), NUMBER(LEDGER_LOCK_SWEEP), NUMBER(LEDGER_LOCK_SLOTS);
    printf("\"sizeof header\": %zu, \"sizeof slot\": %zu}\n",
           sizeof(struct apportion_ledger_header), sizeof(struct apportion_ledger_slot));
    return 0;
}
