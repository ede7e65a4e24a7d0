#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../shim/src/common/ledger.h"
#include "parts.h"

#define LIMIT (UINT64_C(100) << 20)
#define THREADS 3
#define PROCESSES 6
#define KILLS 300
#define HELD 16

static char path[64];

static void setup(void)
{
    snprintf(path, sizeof path, "/tmp/apportion-parts-%d", (int)getpid());
    make_ledger(path);
}

static uint64_t piece(unsigned *seed)
{
    return 1 + (uint64_t)rand_r(seed) % (LIMIT / 8);
}

static int open_ledger(struct ap_ledger *ledger)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    int error = fd < 0 ? -1 : ap_ledger_open(ledger, fd, path);
    if (fd >= 0)
        close(fd);
    return error;
}

static struct ap_ledger shared;
static _Atomic uint64_t truth;

static void *thread_work(void *argument)
{
    unsigned seed = *(unsigned *)argument;
    uint64_t held[HELD] = {0};
    for (unsigned step = 0; step < 300000; step++) {
        unsigned i = (unsigned)rand_r(&seed) % HELD;
        if (held[i]) {
            atomic_fetch_sub(&truth, held[i]);
            CHECK(ap_ledger_release(&shared, held[i]) == held[i]);
            held[i] = 0;
        } else {
            uint64_t bytes = piece(&seed);
            bool whole = rand_r(&seed) % 2;
            held[i] = whole ? (ap_ledger_reserve(&shared, bytes, LIMIT) ? bytes : 0)
                            : ap_ledger_reserve_part(&shared, bytes, LIMIT);
            CHECK(atomic_fetch_add(&truth, held[i]) + held[i] <= LIMIT);
        }
    }
    for (unsigned i = 0; i < HELD; i++) {
        atomic_fetch_sub(&truth, held[i]);
        CHECK(ap_ledger_release(&shared, held[i]) == held[i]);
    }
    return NULL;
}

/* Recounts without end, as many as the file's lock lets through. */
static void *sweeper(void *argument)
{
    while (!atomic_load((atomic_bool *)argument)) {
        atomic_fetch_add(&shared.head->dirty, 1); /* so that the sweep recounts */
        ap_ledger_sweep(&shared);
    }
    return NULL;
}

void test_ledger_threads(unsigned seed)
{
    pthread_t threads[THREADS], sweeping;
    atomic_bool done = false;
    unsigned seeds[THREADS];
    setup();
    CHECK(open_ledger(&shared) == 0);
    CHECK(ap_ledger_join(&shared) == 0 && ap_ledger_join(&shared) == 0);
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = seed * THREADS + i;
        CHECK(pthread_create(&threads[i], NULL, thread_work, &seeds[i]) == 0);
    }
    CHECK(pthread_create(&sweeping, NULL, sweeper, &done) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&done, true);
    pthread_join(sweeping, NULL);
    CHECK(atomic_load(&shared.head->total) == 0 && atomic_load(&truth) == 0);
    CHECK(atomic_load(&shared.head->peak) <= LIMIT);
    unlink(path);
}

/* What the children of test_ledger_kills share with it. `held` of a child is never less than what
 * it has in `truth`, at any instruction; so what is left of `truth` after the dead were taken out
 * is never more than what the living hold. */
struct board {
    _Atomic uint64_t truth, held[PROCESSES];
    _Atomic unsigned long steps[PROCESSES], over;
    atomic_bool pause;
    atomic_bool paused[PROCESSES];
};

static struct board *board;
static pid_t children[PROCESSES];

static void take(struct ap_ledger *ledger, unsigned place, uint64_t bytes, uint64_t *held)
{
    if (!ap_ledger_reserve(ledger, bytes, LIMIT)) {
        ap_ledger_sweep(ledger);
        return;
    }
    *held = bytes;
    atomic_fetch_add(&board->held[place], bytes);
    /* Signed: one that dies in the middle of a step may be taken out of it twice. */
    if ((int64_t)(atomic_fetch_add(&board->truth, bytes) + bytes) > (int64_t)LIMIT)
        atomic_fetch_add(&board->over, 1);
}

static void give(struct ap_ledger *ledger, unsigned place, uint64_t *held)
{
    atomic_fetch_sub(&board->truth, *held);
    atomic_fetch_sub(&board->held[place], *held);
    ap_ledger_release(ledger, *held);
    *held = 0;
}

static void child_work(unsigned place, unsigned seed)
{
    struct ap_ledger ledger = {.head = NULL};
    uint64_t held[HELD] = {0};
    if (open_ledger(&ledger) != 0 || ap_ledger_join(&ledger) != 0)
        _exit(3);
    for (;;) {
        unsigned i = (unsigned)rand_r(&seed) % HELD;
        if (held[i])
            give(&ledger, place, &held[i]);
        else
            take(&ledger, place, piece(&seed), &held[i]);
        atomic_fetch_add(&board->steps[place], 1);
        if (atomic_load(&board->pause)) {
            atomic_store(&board->paused[place], true);
            for (;;)
                pause();
        }
    }
}

static void start(unsigned place, unsigned seed)
{
    children[place] = fork();
    CHECK(children[place] >= 0);
    if (children[place] == 0)
        child_work(place, seed);
}

static void steps_of_all(void)
{
    for (unsigned i = 0; i < PROCESSES; i++) {
        unsigned long seen = atomic_load(&board->steps[i]);
        while (atomic_load(&board->steps[i]) == seen) {
            CHECK(waitpid(children[i], NULL, WNOHANG) == 0);
            usleep(50);
        }
    }
}

/* Stopped first: while it is stopped its memory is still its own, so the truth can be told. */
static void kill_one(unsigned place)
{
    int status;
    kill(children[place], SIGSTOP);
    CHECK(waitpid(children[place], &status, WUNTRACED) == children[place] && WIFSTOPPED(status));
    atomic_fetch_sub(&board->truth, atomic_exchange(&board->held[place], 0));
    kill(children[place], SIGKILL);
    CHECK(waitpid(children[place], &status, 0) == children[place]);
}

static void compare_with_truth(void)
{
    struct ap_ledger ledger = {.head = NULL};
    uint64_t sum = 0;
    atomic_store(&board->pause, true);
    for (unsigned i = 0; i < PROCESSES; i++) {
        while (!atomic_load(&board->paused[i]))
            usleep(50);
        sum += atomic_load(&board->held[i]);
    }
    CHECK(open_ledger(&ledger) == 0);
    ap_ledger_sweep(&ledger);
    CHECK(atomic_load(&ledger.head->dirty) == atomic_load(&ledger.head->clean));
    CHECK(atomic_load(&ledger.head->total) == sum);
    CHECK(atomic_load(&ledger.head->peak) <= LIMIT);
    for (unsigned i = 0; i < PROCESSES; i++)
        kill(children[i], SIGKILL);
    for (unsigned i = 0; i < PROCESSES; i++)
        waitpid(children[i], NULL, 0);
    ap_ledger_sweep(&ledger);
    CHECK(atomic_load(&ledger.head->total) == 0);
}

void test_ledger_kills(unsigned seed)
{
    setup();
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    for (unsigned i = 0; i < PROCESSES; i++)
        start(i, seed + i);
    steps_of_all();
    for (unsigned kills = 0; kills < KILLS; kills++) {
        unsigned victim = (unsigned)rand_r(&seed) % PROCESSES;
        usleep((unsigned)rand_r(&seed) % 500);
        kill_one(victim);
        start(victim, seed + kills);
        if (kills % 20 == 0)
            steps_of_all();
    }
    steps_of_all();
    compare_with_truth();
    CHECK(atomic_load(&board->over) == 0);
    unlink(path);
}
