/* Tests in C of the library's parts, built plain and under each sanitizer. */
#ifndef TEST_PARTS_H
#define TEST_PARTS_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);        \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

void test_table(unsigned seed);
void test_ledger_threads(unsigned seed);
void test_ledger_kills(unsigned seed);
void test_calendar(unsigned seed);
void test_estimates(unsigned seed);
void test_what_takes_longer_once(unsigned seed);
void test_mixed(unsigned seed);
void test_launches(unsigned seed);
void test_schedule(unsigned seed);

/* Writes a fresh ledger to `path`. */
void make_ledger(const char *path);

#endif
