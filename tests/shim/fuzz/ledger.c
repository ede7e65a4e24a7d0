/* Fuzz target: a ledger that others scribble on, as any process of the share can. Whatever it says,
 * nothing may crash, go on for ever, or grant what would take `total` over the limit.
 *
 * The data is a row of commands of 8 bytes: what to do, a place (16 bits), a value. Values are
 * spread over 64 bits, so that a byte can mean much. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../shim/src/common/ledger.h"
#include "target.h"

#define LIMIT (UINT64_C(64) << 20)
#define COMMANDS_MOST 64

struct command {
    uint8_t what, shift;
    uint16_t place;
    uint32_t value;
};

static const char *file(void)
{
    static char path[64];
    if (!path[0])
        snprintf(path, sizeof path, "/dev/shm/apportion-fuzz-%d", (int)getpid());
    return path;
}

static void remove_file(void)
{
    unlink(file());
}

static int fresh_file(void)
{
    static bool registered;
    struct apportion_ledger_header head = {
        .magic = APPORTION_LEDGER_MAGIC,
        .version = APPORTION_LEDGER_VERSION,
        .header_size = APPORTION_LEDGER_HEADER_SIZE,
        .slot_size = APPORTION_LEDGER_SLOT_SIZE,
        .slot_count = APPORTION_LEDGER_SLOT_COUNT,
    };
    int fd = open(file(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (!registered)
        registered = atexit(remove_file) == 0;
    MUST(fd >= 0 && ftruncate(fd, APPORTION_LEDGER_SIZE) == 0);
    MUST(pwrite(fd, &head, sizeof head, 0) == (ssize_t)sizeof head);
    return fd;
}

static uint64_t value_of(const struct command *command)
{
    return (uint64_t)command->value << (command->shift & 63);
}

/* A word of the header's part that changes, or of one of the first slots. */
static void scribble(int fd, const struct command *command)
{
    uint64_t value = value_of(command);
    off_t place = command->place % 5 * 8 + 24;
    if (command->place & 0x8000)
        place = APPORTION_LEDGER_SLOTS_OFFSET + command->place % 64 * 8;
    MUST(pwrite(fd, &value, sizeof value, place) == sizeof value);
}

static void reserve(struct ap_ledger *ledger, uint64_t bytes, bool part)
{
    uint64_t before = atomic_load(&ledger->head->total), given;
    if (part)
        given = ap_ledger_reserve_part(ledger, bytes, LIMIT);
    else
        given = ap_ledger_reserve(ledger, bytes, LIMIT) ? bytes : 0;
    MUST(given <= bytes && (given == 0 || (before <= LIMIT && given <= LIMIT - before)));
    MUST(given == 0 || atomic_load(&ledger->head->total) == before + given);
}

static void obey(struct ap_ledger *ledger, int fd, const struct command *command)
{
    uint64_t value = value_of(command);
    switch (command->what % 8) {
    case 0:
    case 1:
        scribble(fd, command);
        break;
    case 2:
        reserve(ledger, value, false);
        break;
    case 3:
        reserve(ledger, value, true);
        break;
    case 4:
        MUST(ap_ledger_release(ledger, value) <= value);
        break;
    default:
        ap_ledger_sweep(ledger);
    }
}

/* A process keeps its ledgers for ever; thousands of them would be too many. */
static void forget(struct ap_ledger *ledger)
{
    uintptr_t page = 4096, mine = (uintptr_t)atomic_load(&ledger->mine) / page * page;
    if (mine)
        munmap((void *)mine, page);
    munmap(ledger->head, APPORTION_LEDGER_SIZE);
}

/* A file of another size or with another head is no ledger. */
static void spoil(int fd, const uint8_t *data, size_t size)
{
    struct ap_ledger ledger = {.head = NULL};
    off_t length = APPORTION_LEDGER_SIZE;
    if (size > 3 && data[0] % 4 == 0)
        length = data[1] << 8 | data[2];
    else if (size > 24)
        MUST(pwrite(fd, data, 24, 0) == 24);
    MUST(ftruncate(fd, length) == 0);
    if (ap_ledger_open(&ledger, fd, file()) == 0) {
        MUST(length == APPORTION_LEDGER_SIZE);
        MUST(size <= 24 || memcmp(data, "APPLEDG1", 8) == 0);
        forget(&ledger);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_ledger ledger = {.head = NULL};
    struct command command;
    int fd = fresh_file();
    if (size % sizeof command == 1) {
        spoil(fd, data, size);
        close(fd);
        return 0;
    }
    MUST(ap_ledger_open(&ledger, fd, file()) == 0 && ap_ledger_join(&ledger) == 0);
    for (unsigned i = 0; i < COMMANDS_MOST && size >= sizeof command; i++) {
        memcpy(&command, data, sizeof command);
        data += sizeof command;
        size -= sizeof command;
        obey(&ledger, fd, &command);
    }
    forget(&ledger);
    close(fd);
    return 0;
}
