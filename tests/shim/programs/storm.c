/* Processes that allocate and free without end, killed at random instructions and replaced: at a
 * random moment the victim is killed, or (every fourth) stopped and killed after a random number of
 * single steps.
 *   storm <kills> <processes> <largest allocation> <seed>
 * After every kill each survivor must be seen to go on. Then all stop between two calls, and a
 * line says: kills done; the survivors' errors (anything but success and out of memory); the
 * longest time in microseconds that a survivor's call took. They stay so, holding what they
 * hold, until standard input ends. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define PROCESSES_MOST 64
#define HELD 32
#define SINGLE_STEPS 400 /* at most: about as many as an allocation takes in the front */

struct board {
    _Atomic unsigned long steps[PROCESSES_MOST];
    _Atomic unsigned long errors, longest_us;
    atomic_bool stop;
    atomic_bool stopped[PROCESSES_MOST];
};

static struct board *board;
static pid_t children[PROCESSES_MOST];
static struct driver d; /* loaded once; each child initialises it for itself */

static unsigned long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long)now.tv_sec * 1000000ul + (unsigned long)now.tv_nsec / 1000ul;
}

static void note_time(unsigned long took)
{
    unsigned long longest = atomic_load(&board->longest_us);
    while (took > longest && !atomic_compare_exchange_weak(&board->longest_us, &longest, took))
        continue;
}

static int step(pointer held[HELD], size_t most, unsigned *seed)
{
    unsigned i = (unsigned)rand_r(seed) % HELD;
    if (!held[i])
        return d.alloc(&held[i], 1 + (size_t)rand_r(seed) % most);
    int result = d.free(held[i]);
    held[i] = 0;
    return result;
}

static void work(unsigned place, size_t most, unsigned seed)
{
    void *context;
    pointer held[HELD] = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Killed neighbours may still hold the card; the context is not what is tested. */
    if (d.init(0) || d.retain(&context, 0) || d.set(context))
        atomic_fetch_add(&board->errors, 1);
    while (!atomic_load(&board->stop)) {
        unsigned long before = now_us();
        int result = step(held, most, &seed);
        note_time(now_us() - before);
        if (result != 0 && result != 2)
            atomic_fetch_add(&board->errors, 1);
        if (atomic_fetch_add(&board->steps[place], 1) % 16 == 0)
            usleep(50); /* let the others have the processor */
    }
    atomic_store(&board->stopped[place], true);
    for (;;)
        pause();
}

static void start(unsigned place, size_t most, unsigned seed)
{
    children[place] = fork();
    if (children[place] == 0)
        work(place, most, seed);
}

static void wait_for_steps(unsigned place, unsigned long after)
{
    while (atomic_load(&board->steps[place]) <= after)
        usleep(200);
}

/* By time alone most would die in a system call of the simulated driver. */
static void single_steps(pid_t victim, unsigned steps)
{
    if (ptrace(PTRACE_SEIZE, victim, 0, 0) || ptrace(PTRACE_INTERRUPT, victim, 0, 0))
        atomic_fetch_add(&board->errors, 1);
    waitpid(victim, NULL, 0);
    for (; steps > 0; steps--) {
        if (ptrace(PTRACE_SINGLESTEP, victim, 0, 0))
            atomic_fetch_add(&board->errors, 1);
        waitpid(victim, NULL, 0);
    }
}

static void kill_and_replace(unsigned processes, size_t most, unsigned *seed)
{
    unsigned long seen[PROCESSES_MOST];
    unsigned victim = (unsigned)rand_r(seed) % processes;
    usleep((unsigned)rand_r(seed) % 2000);
    if (rand_r(seed) % 4 == 0)
        single_steps(children[victim], (unsigned)rand_r(seed) % SINGLE_STEPS);
    kill(children[victim], SIGKILL);
    waitpid(children[victim], NULL, 0);
    for (unsigned i = 0; i < processes; i++)
        seen[i] = atomic_load(&board->steps[i]);
    start(victim, most, (unsigned)rand_r(seed));
    for (unsigned i = 0; i < processes; i++)
        wait_for_steps(i, seen[i]);
}

int main(int argc, char **argv)
{
    unsigned kills = argc > 1 ? (unsigned)atoi(argv[1]) : 100;
    unsigned processes = argc > 2 ? (unsigned)atoi(argv[2]) : 8;
    size_t most = argc > 3 ? strtoul(argv[3], NULL, 10) : 1 << 20;
    unsigned seed = argc > 4 ? (unsigned)atoi(argv[4]) : 1;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED || processes > PROCESSES_MOST)
        return 1;
    driver_load(&d);
    for (unsigned i = 0; i < processes; i++)
        start(i, most, seed + i);
    for (unsigned i = 0; i < processes; i++)
        wait_for_steps(i, 0);
    for (unsigned done = 0; done < kills; done++)
        kill_and_replace(processes, most, &seed);
    atomic_store(&board->stop, true);
    for (unsigned i = 0; i < processes; i++)
        while (!atomic_load(&board->stopped[i]))
            usleep(200);
    printf("%u %lu %lu\n", kills, atomic_load(&board->errors), atomic_load(&board->longest_us));
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    for (unsigned i = 0; i < processes; i++)
        kill(children[i], SIGKILL);
    for (unsigned i = 0; i < processes; i++)
        waitpid(children[i], NULL, 0);
    return 0;
}
