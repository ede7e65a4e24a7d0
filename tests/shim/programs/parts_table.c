#include <pthread.h>
#include <string.h>

#include "../../../shim/src/common/table.h"
#include "parts.h"

#define KEYS 3000
#define STEPS 60000
#define THREADS 4

static struct ap_table table;
static struct ap_table counts;

/* Each thread owns its keys, so that it knows what must be there. */
static void *own_keys(void *argument)
{
    unsigned seed = *(unsigned *)argument;
    uint64_t base = ((uint64_t)seed << 40) + 512;
    static __thread uint64_t held[KEYS];
    memset(held, 0, sizeof held);
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned i = (unsigned)rand_r(&seed) % KEYS;
        uint64_t key = base + (uint64_t)i * 512;
        struct ap_record record = {.key = key, .bytes = step + 1, .context = i % 3}, old;
        bool had_old, first;
        if (rand_r(&seed) % 2) {
            CHECK(ap_table_put(&table, &record, &old, &had_old));
            CHECK(had_old == (held[i] != 0) && (!had_old || old.bytes == held[i]));
            held[i] = step + 1;
        } else {
            CHECK(ap_table_take(&table, key, &record) == (held[i] != 0));
            CHECK(held[i] == 0 || record.bytes == held[i]);
            held[i] = 0;
        }
        CHECK(ap_table_ref(&counts, 1 + i % 50, &first));
        (void)ap_table_unref(&counts, 1 + i % 50, &old);
    }
    for (unsigned i = 0; i < KEYS; i++) {
        struct ap_record record;
        CHECK(ap_table_take(&table, base + (uint64_t)i * 512, &record) == (held[i] != 0));
    }
    return NULL;
}

static void contexts(void)
{
    struct ap_record record, old, taken[7];
    bool had_old;
    size_t sum = 0, count;
    for (uint64_t key = 1; key <= 1000; key++) {
        record = (struct ap_record){.key = key, .bytes = 1, .context = key % 4};
        CHECK(ap_table_put(&table, &record, &old, &had_old) && !had_old);
    }
    ap_table_retag(&table, 2, 77);
    CHECK(ap_table_take_context(&table, 2, taken, 7) == 0);
    while ((count = ap_table_take_context(&table, 77, taken, 7)) > 0)
        for (size_t i = 0; i < count; i++, sum++)
            CHECK(taken[i].key % 4 == 2);
    CHECK(sum == 250);
    for (uint64_t key = 1; key <= 1000; key++)
        CHECK(ap_table_take(&table, key, &record) == (key % 4 != 2));
}

void test_table(unsigned seed)
{
    pthread_t threads[THREADS];
    unsigned seeds[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = seed * THREADS + i + 1;
        CHECK(pthread_create(&threads[i], NULL, own_keys, &seeds[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < AP_TABLE_PARTS; i++)
        CHECK(table.parts[i].count == 0 && counts.parts[i].count == 0);
    contexts();
}
