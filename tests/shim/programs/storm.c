/* Processes that allocate and free without end, killed at random moments and replaced.
 *   storm <kills> <processes> <largest allocation> <seed>
 * After every kill each survivor must be seen to go on. Prints the kills done and the survivors'
 * errors (anything but success and out of memory), then kills the rest. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define PROCESSES_MOST 64
#define HELD 32

struct board {
    _Atomic unsigned long steps[PROCESSES_MOST];
    _Atomic unsigned long errors;
};

static struct board *board;
static pid_t children[PROCESSES_MOST];
static struct driver d; /* loaded once; each child initialises it for itself */

static void work(unsigned place, size_t most, unsigned seed)
{
    void *context;
    pointer held[HELD] = {0};
    /* Killed neighbours may still hold the card; the context is not what is tested. */
    if (d.init(0) || d.retain(&context, 0) || d.set(context))
        atomic_fetch_add(&board->errors, 1);
    for (;;) {
        unsigned i = (unsigned)rand_r(&seed) % HELD;
        int result;
        if (held[i]) {
            result = d.free(held[i]);
            held[i] = 0;
        } else {
            result = d.alloc(&held[i], 1 + (size_t)rand_r(&seed) % most);
        }
        if (result != 0 && result != 2)
            atomic_fetch_add(&board->errors, 1);
        if (atomic_fetch_add(&board->steps[place], 1) % 16 == 0)
            usleep(50); /* let the others have the processor */
    }
}

static void start(unsigned place, size_t most, unsigned seed)
{
    children[place] = fork();
    if (children[place] == 0) {
        work(place, most, seed);
        _exit(1);
    }
}

static void wait_for_steps(unsigned place, unsigned long after)
{
    while (atomic_load(&board->steps[place]) <= after)
        usleep(200);
}

int main(int argc, char **argv)
{
    unsigned kills = argc > 1 ? (unsigned)atoi(argv[1]) : 100;
    unsigned processes = argc > 2 ? (unsigned)atoi(argv[2]) : 8;
    size_t most = argc > 3 ? strtoul(argv[3], NULL, 10) : 1 << 20;
    unsigned seed = argc > 4 ? (unsigned)atoi(argv[4]) : 1, done = 0;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED || processes > PROCESSES_MOST)
        return 1;
    driver_load(&d);
    for (unsigned i = 0; i < processes; i++)
        start(i, most, seed + i);
    for (unsigned i = 0; i < processes; i++)
        wait_for_steps(i, 0);
    for (; done < kills; done++) {
        unsigned long seen[PROCESSES_MOST];
        unsigned victim = (unsigned)rand_r(&seed) % processes;
        usleep((unsigned)rand_r(&seed) % 2000);
        kill(children[victim], SIGKILL);
        waitpid(children[victim], NULL, 0);
        for (unsigned i = 0; i < processes; i++)
            seen[i] = atomic_load(&board->steps[i]);
        start(victim, most, seed + done + processes);
        for (unsigned i = 0; i < processes; i++)
            wait_for_steps(i, seen[i]);
    }
    for (unsigned i = 0; i < processes; i++)
        kill(children[i], SIGKILL);
    for (unsigned i = 0; i < processes; i++)
        waitpid(children[i], NULL, 0);
    printf("%u %lu\n", done, atomic_load(&board->errors));
    return 0;
}
