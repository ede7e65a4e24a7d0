/* Hash table from a 64-bit key to a small record, for many threads: 64 parts, each with its own
 * lock, open addressing, memory straight from the kernel (never the application's allocator).
 * All zero is an empty table. Keys are not 0. */
#ifndef AP_TABLE_H
#define AP_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lock.h"

#define AP_TABLE_PARTS 64u

struct ap_record {
    uint64_t key;
    uint64_t bytes;   /* charged for it */
    uint64_t context; /* that it belongs to; 0: none */
    uint32_t count;   /* of references, where there are several */
    uint16_t gpu;     /* index of the process's GPU record */
    uint16_t kind;    /* the owner's tag */
};

struct ap_table_part {
    struct ap_short_lock lock;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t count;
    struct ap_record *records;
} __attribute__((aligned(64)));

struct ap_table {
    struct ap_table_part parts[AP_TABLE_PARTS];
};

/* Puts a record in. If its key was there already, the old record goes to `old` and *had_old is set.
 * False: no memory; nothing changed. */
bool ap_table_put(struct ap_table *table, const struct ap_record *record, struct ap_record *old,
                  bool *had_old);

/* Copies the record of `key`. False: there is none. */
bool ap_table_get(struct ap_table *table, uint64_t key, struct ap_record *out);

/* Takes the record of `key` out. False: there is none. */
bool ap_table_take(struct ap_table *table, uint64_t key, struct ap_record *out);

/* Takes out up to `most` records of `context`; returns how many. Call until it returns 0. */
size_t ap_table_take_context(struct ap_table *table, uint64_t context, struct ap_record *out,
                             size_t most);

/* Gives every record of context `from` to context `to`. */
void ap_table_retag(struct ap_table *table, uint64_t from, uint64_t to);

/* Counts a reference to `key`, which is put in if it is not there; *first: it is the only one. */
bool ap_table_ref(struct ap_table *table, uint64_t key, bool *first);

/* Counts a reference if `key` is there, else returns false. */
bool ap_table_ref_known(struct ap_table *table, uint64_t key);

/* Drops one; true: it was the last, and its record is in `out`. */
bool ap_table_unref(struct ap_table *table, uint64_t key, struct ap_record *out);

#endif
