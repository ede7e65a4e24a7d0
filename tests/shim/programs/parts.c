/* parts <test> <seed>: runs one test; silent and 0 when all is well. */
#include "parts.h"

#include <string.h>

#include "apportion/ledger.h"

void make_ledger(const char *path)
{
    static unsigned char bytes[APPORTION_LEDGER_SIZE];
    struct apportion_ledger_header head = {APPORTION_LEDGER_MAGIC,
                                           APPORTION_LEDGER_VERSION,
                                           APPORTION_LEDGER_HEADER_SIZE,
                                           APPORTION_LEDGER_SLOT_SIZE,
                                           APPORTION_LEDGER_SLOT_COUNT,
                                           0, 0, 0, 0, 0, 0, 0};
    FILE *file = fopen(path, "w");
    CHECK(file);
    memcpy(bytes, &head, sizeof head);
    CHECK(fwrite(bytes, sizeof bytes, 1, file) == 1);
    CHECK(fclose(file) == 0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(unsigned seed);
    } tests[] = {
        {"table", test_table},
        {"ledger-threads", test_ledger_threads},
        {"ledger-kills", test_ledger_kills},
        {"calendar", test_calendar},
        {"estimates", test_estimates},
        {"longer-once", test_what_takes_longer_once},
        {"mixed", test_mixed},
        {"launches", test_launches},
        {"schedule", test_schedule},
    };
    CHECK(argc == 3);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (strcmp(argv[1], tests[i].name) == 0) {
            tests[i].run((unsigned)atoi(argv[2]));
            return 0;
        }
    }
    CHECK(!"a test of that name");
    return 1;
}
