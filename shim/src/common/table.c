#include "table.h"

#include "sys.h"

#define FIRST_CAPACITY 128u /* one page of records */

static uint64_t hash(uint64_t key)
{
    key ^= key >> 33;
    key *= UINT64_C(0xff51afd7ed558ccd);
    key ^= key >> 33;
    key *= UINT64_C(0xc4ceb9fe1a85ec53);
    return key ^ key >> 33;
}

static struct ap_table_part *part_of(struct ap_table *table, uint64_t hashed)
{
    return &table->parts[hashed % AP_TABLE_PARTS];
}

/* The part's number is in the low bits, so the place within it comes from the high ones. */
static uint32_t home(const struct ap_table_part *part, uint64_t hashed)
{
    return (uint32_t)(hashed >> 32) & (part->capacity - 1);
}

/* The place of `key`, or the free place where it would go. The part has memory. */
static uint32_t find(const struct ap_table_part *part, uint64_t key, uint64_t hashed)
{
    uint32_t at = home(part, hashed);
    while (part->records[at].key != 0 && part->records[at].key != key)
        at = (at + 1) & (part->capacity - 1);
    return at;
}

static bool grow(struct ap_table_part *part)
{
    struct ap_table_part bigger = {.capacity = part->capacity * 2};
    if (part->capacity == 0)
        bigger.capacity = FIRST_CAPACITY;
    if (bigger.capacity < part->capacity)
        return false;
    bigger.records = ap_map_private((size_t)bigger.capacity * sizeof *bigger.records);
    if (!bigger.records)
        return false;
    for (uint32_t i = 0; i < part->capacity; i++) {
        struct ap_record *record = &part->records[i];
        if (record->key)
            bigger.records[find(&bigger, record->key, hash(record->key))] = *record;
    }
    if (part->records)
        ap_unmap(part->records, (size_t)part->capacity * sizeof *part->records);
    part->records = bigger.records;
    part->capacity = bigger.capacity;
    return true;
}

/* Room for one more at a load of at most 3/4. */
static bool make_room(struct ap_table_part *part)
{
    return part->count + 1 <= part->capacity / 4 * 3 || grow(part);
}

/* Empties a place and moves up those behind it that would no longer be found (no tombstones). */
static void vacate(struct ap_table_part *part, uint32_t hole)
{
    uint32_t mask = part->capacity - 1, at = hole;
    for (;;) {
        at = (at + 1) & mask;
        struct ap_record *record = &part->records[at];
        if (record->key == 0)
            break;
        uint32_t wanted = home(part, hash(record->key));
        if (((at - wanted) & mask) >= ((at - hole) & mask)) {
            part->records[hole] = *record;
            hole = at;
        }
    }
    part->records[hole].key = 0;
    part->count--;
}

bool ap_table_put(struct ap_table *table, const struct ap_record *record, struct ap_record *old,
                  bool *had_old)
{
    uint64_t hashed = hash(record->key);
    struct ap_table_part *part = part_of(table, hashed);
    *had_old = false;
    ap_short_lock(&part->lock);
    bool room = make_room(part);
    if (room) {
        struct ap_record *place = &part->records[find(part, record->key, hashed)];
        if (place->key) {
            *old = *place;
            *had_old = true;
        } else {
            part->count++;
        }
        *place = *record;
    }
    ap_short_unlock(&part->lock);
    return room;
}

bool ap_table_get(struct ap_table *table, uint64_t key, struct ap_record *out)
{
    uint64_t hashed = hash(key);
    struct ap_table_part *part = part_of(table, hashed);
    bool found = false;
    ap_short_lock(&part->lock);
    if (part->count > 0 && key != 0) {
        *out = part->records[find(part, key, hashed)];
        found = out->key != 0;
    }
    ap_short_unlock(&part->lock);
    return found;
}

bool ap_table_take(struct ap_table *table, uint64_t key, struct ap_record *out)
{
    uint64_t hashed = hash(key);
    struct ap_table_part *part = part_of(table, hashed);
    bool found = false;
    ap_short_lock(&part->lock);
    if (part->count > 0 && key != 0) {
        uint32_t at = find(part, key, hashed);
        if (part->records[at].key) {
            *out = part->records[at];
            vacate(part, at);
            found = true;
        }
    }
    ap_short_unlock(&part->lock);
    return found;
}

static size_t take_context_of(struct ap_table_part *part, uint64_t context, struct ap_record *out,
                              size_t most)
{
    size_t taken = 0;
    ap_short_lock(&part->lock);
    for (uint32_t at = 0; at < part->capacity && taken < most;) {
        struct ap_record *record = &part->records[at];
        if (record->key == 0 || record->context != context) {
            at++;
            continue;
        }
        out[taken++] = *record;
        vacate(part, at); /* another may have moved here: look at the same place again */
    }
    ap_short_unlock(&part->lock);
    return taken;
}

size_t ap_table_take_context(struct ap_table *table, uint64_t context, struct ap_record *out,
                             size_t most)
{
    size_t taken = 0;
    for (unsigned i = 0; i < AP_TABLE_PARTS && taken < most; i++)
        taken += take_context_of(&table->parts[i], context, out + taken, most - taken);
    return taken;
}

void ap_table_retag(struct ap_table *table, uint64_t from, uint64_t to)
{
    for (unsigned i = 0; i < AP_TABLE_PARTS; i++) {
        struct ap_table_part *part = &table->parts[i];
        ap_short_lock(&part->lock);
        for (uint32_t at = 0; at < part->capacity; at++)
            if (part->records[at].key && part->records[at].context == from)
                part->records[at].context = to;
        ap_short_unlock(&part->lock);
    }
}

bool ap_table_ref(struct ap_table *table, uint64_t key, bool *first)
{
    uint64_t hashed = hash(key);
    struct ap_table_part *part = part_of(table, hashed);
    ap_short_lock(&part->lock);
    bool room = make_room(part);
    if (room) {
        struct ap_record *place = &part->records[find(part, key, hashed)];
        if (!place->key) {
            *place = (struct ap_record){.key = key};
            part->count++;
        }
        *first = ++place->count == 1;
    }
    ap_short_unlock(&part->lock);
    return room;
}

bool ap_table_ref_known(struct ap_table *table, uint64_t key)
{
    uint64_t hashed = hash(key);
    struct ap_table_part *part = part_of(table, hashed);
    bool known = false;
    ap_short_lock(&part->lock);
    if (part->count > 0 && key != 0) {
        struct ap_record *record = &part->records[find(part, key, hashed)];
        known = record->key != 0;
        record->count += known;
    }
    ap_short_unlock(&part->lock);
    return known;
}

bool ap_table_unref(struct ap_table *table, uint64_t key, struct ap_record *out)
{
    uint64_t hashed = hash(key);
    struct ap_table_part *part = part_of(table, hashed);
    bool last = false;
    ap_short_lock(&part->lock);
    if (part->count > 0 && key != 0) {
        uint32_t at = find(part, key, hashed);
        if (part->records[at].key && --part->records[at].count == 0) {
            *out = part->records[at];
            vacate(part, at);
            last = true;
        }
    }
    ap_short_unlock(&part->lock);
    return last;
}
