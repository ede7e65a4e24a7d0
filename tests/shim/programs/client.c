/* An application that does what it is told, a command a line, and answers with a line of numbers.
 * The first number is the driver's result where there is one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client_pool.h"
#include "driver.h"

#define SENTINEL 0xdeadbeefULL
#define LIVE_MOST 200000

static struct driver d;
static struct nvml n;
static pointer live[LIVE_MOST];
static size_t live_count;
static void *contexts[8];
static char **program;

static int keep(int result, const pointer *p)
{
    if (result == 0 && live_count < LIVE_MOST)
        live[live_count++] = *p;
    return result;
}

static void do_alloc(size_t bytes)
{
    pointer p = SENTINEL;
    int result = keep(d.alloc(&p, bytes), &p);
    printf("%d %llu\n", result, p);
}

static void do_pitch(size_t width, size_t height)
{
    pointer p = SENTINEL;
    size_t pitch = SENTINEL;
    int result = keep(d.pitch(&p, &pitch, width, height, 4), &p);
    printf("%d %llu %zu\n", result, p, pitch);
}

static void do_managed(size_t bytes)
{
    pointer p = SENTINEL;
    int result = keep(d.managed(&p, bytes, 1), &p);
    printf("%d %llu\n", result, p);
}

/* Allocates pieces until one is refused: result of that, number that went well. */
static void do_fill(size_t bytes, size_t most)
{
    size_t count = 0;
    int result = 0;
    while (count < most) {
        pointer p;
        result = keep(d.alloc(&p, bytes), &p);
        if (result)
            break;
        count++;
    }
    printf("%d %zu\n", result, count);
}

/* Frees every step-th live pointer: first error, number freed. */
static void do_free_each(size_t step)
{
    size_t kept = 0, freed = 0;
    int error = 0;
    for (size_t i = 0; i < live_count; i++) {
        if (i % step) {
            live[kept++] = live[i];
            continue;
        }
        int result = d.free(live[i]);
        freed += result == 0;
        error = error ? error : result;
    }
    live_count = kept;
    printf("%d %zu\n", error, freed);
}

/* Random allocations and releases: errors other than out of memory, grants, refusals. */
static void churn(size_t steps, size_t most, unsigned seed, size_t out[3])
{
    pointer held[64] = {0};
    for (size_t i = 0; i < steps; i++) {
        unsigned place = (unsigned)rand_r(&seed) % 64;
        if (held[place]) {
            out[0] += d.free(held[place]) != 0;
            held[place] = 0;
            continue;
        }
        size_t bytes = 1 + ((size_t)rand_r(&seed) << 16 ^ (size_t)rand_r(&seed)) % most;
        int result = d.alloc(&held[place], bytes);
        out[0] += result != 0 && result != 2;
        out[1] += result == 0;
        out[2] += result == 2;
        if (result)
            held[place] = 0;
    }
    for (unsigned i = 0; i < 64; i++)
        if (held[i])
            out[0] += d.free(held[i]) != 0;
}

struct work {
    size_t steps, most, out[3];
    unsigned seed;
};

static void *churn_thread(void *argument)
{
    struct work *work = argument;
    d.set(contexts[0]);
    churn(work->steps, work->most, work->seed, work->out);
    return NULL;
}

static void do_churn(size_t steps, size_t most, unsigned seed, unsigned threads)
{
    pthread_t thread[64];
    struct work work[64] = {{0}};
    size_t sum[3] = {0};
    for (unsigned i = 0; i < threads && i < 64; i++) {
        work[i] = (struct work){.steps = steps, .most = most, .seed = seed + i};
        pthread_create(&thread[i], NULL, churn_thread, &work[i]);
    }
    for (unsigned i = 0; i < threads && i < 64; i++) {
        pthread_join(thread[i], NULL);
        for (int k = 0; k < 3; k++)
            sum[k] += work[i].out[k];
    }
    printf("%zu %zu %zu\n", sum[0], sum[1], sum[2]);
}

static void do_info(void)
{
    size_t free_bytes = 0, total = 0;
    int result = d.info(&free_bytes, &total);
    printf("%d %zu %zu\n", result, free_bytes, total);
}

static void do_total(int device)
{
    size_t total = SENTINEL;
    int result = d.total(&total, device);
    printf("%d %zu\n", result, total);
}

static void do_null(void)
{
    size_t value = 0;
    int a = d.info(NULL, &value), b = d.info(&value, NULL), c = d.info(NULL, NULL);
    int e = d.alloc(NULL, 4096), f = d.total(NULL, 0), g = d.free(0);
    printf("%d %d %d %d %d %d\n", a, b, c, e, f, g);
}

static void do_nvml(unsigned index)
{
    void *handle = NULL;
    unsigned long long v1[3] = {0};
    struct {
        unsigned version;
        unsigned long long total, reserved, free, used;
    } v2 = {.version = sizeof v2 | 2u << 24}, odd = {.version = sizeof v2 | 3u << 24};
    if (!n.init)
        nvml_load(&n);
    n.init();
    int got = n.handle(index, &handle);
    int one = n.info(handle, v1), two = n.info_v2(handle, &v2), three = n.info_v2(handle, &odd);
    printf("%d %d %d %d %llu %llu %llu %llu %llu %llu %llu\n", got, one, two, three, v1[0], v1[1],
           v1[2], v2.total, v2.reserved, v2.free, v2.used);
}

static void start_up(int device)
{
    int result = d.init(0);
    if (result == 0)
        result = d.retain(&contexts[0], device);
    if (result == 0)
        result = d.set(contexts[0]);
    printf("%d\n", result);
}

/* A child that reports through us: what it finds of the parent's allocation, and its own. By a
 * bare clone no fork handler of any library runs. */
static void do_fork(bool bare, size_t bytes)
{
    fflush(stdout);
    pid_t child = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
        pointer p = SENTINEL;
        int result = d.alloc(&p, bytes);
        int freed = live_count ? d.free(live[0]) : 0;
        printf("%d %llu %d\n", result, p, freed);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

/* A child that uses the driver before its parent does and stays; its result. */
static void do_start_in_child(bool bare, size_t bytes)
{
    int ends[2], result = -1;
    if (pipe(ends))
        return;
    pid_t child = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
        pointer p;
        void *context;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        result = d.init(0) || d.retain(&context, 0) || d.set(context) || d.alloc(&p, bytes);
        if (write(ends[1], &result, sizeof result) == sizeof result)
            pause();
        _exit(0);
    }
    if (read(ends[0], &result, sizeof result) != sizeof result)
        result = -1;
    printf("%d\n", result);
}

static void do_errno(void)
{
    pointer p;
    size_t a, b;
    errno = 4711;
    d.alloc(&p, 1ULL << 45);
    d.info(&a, &b);
    d.free(1);
    printf("%d %d\n", errno, (int)umask(022));
}

static void replace_program(void)
{
    printf("0\n");
    fflush(stdout);
    execv(program[0], program);
}

static void context_command(const char *what, unsigned long a)
{
    if (!strcmp(what, "create"))
        printf("%d\n", d.create(&contexts[a & 7], 0, 0));
    else if (!strcmp(what, "destroy"))
        printf("%d\n", d.destroy(contexts[a & 7]));
    else if (!strcmp(what, "set"))
        printf("%d\n", d.set(contexts[a & 7]));
    else if (!strcmp(what, "retain"))
        printf("%d\n", d.retain(&contexts[0], (int)a));
    else if (!strcmp(what, "release"))
        printf("%d\n", d.release((int)a));
    else if (!strcmp(what, "reset"))
        printf("%d\n", d.reset((int)a));
    else
        printf("? %s\n", what);
}

static void process_command(const char *what, unsigned long a, unsigned long b)
{
    if (!strcmp(what, "fork"))
        do_fork(false, a);
    else if (!strcmp(what, "clone"))
        do_fork(true, a);
    else if (!strcmp(what, "start-in-fork"))
        do_start_in_child(false, a);
    else if (!strcmp(what, "start-in-clone"))
        do_start_in_child(true, a);
    else if (!strcmp(what, "exec"))
        replace_program();
    else if (!strcmp(what, "closefrom"))
        printf("%d\n", (int)syscall(SYS_close_range, 3, ~0U, 0));
    else if (!strcmp(what, "chdir"))
        printf("%d\n", chdir("/") || chroot("/usr"));
    else if (!strncmp(what, "vmm-", 4))
        vmm_command(&d, what, a, b);
    else if (!strncmp(what, "code-", 5))
        code_command(what, a, b);
    else if (!strcmp(what, "errno"))
        do_errno();
    else
        context_command(what, a);
}

static void command(const char *what, unsigned long a, unsigned long b, unsigned c, unsigned e)
{
    if (!strcmp(what, "start"))
        start_up((int)a);
    else if (!strncmp(what, "pool-", 5))
        pool_command(what, a, b, c, e);
    else if (!strncmp(what, "graph-", 6))
        graph_command(what, a, b, c, e);
    else if (!strcmp(what, "alloc"))
        do_alloc(a);
    else if (!strcmp(what, "pitch"))
        do_pitch(a, b);
    else if (!strcmp(what, "managed"))
        do_managed(a);
    else if (!strcmp(what, "fill"))
        do_fill(a, b);
    else if (!strcmp(what, "free"))
        printf("%d\n", d.free(a));
    else if (!strcmp(what, "free-each"))
        do_free_each(a);
    else if (!strcmp(what, "churn"))
        do_churn(a, b, c, e);
    else if (!strcmp(what, "info"))
        do_info();
    else if (!strcmp(what, "total"))
        do_total((int)a);
    else if (!strcmp(what, "null"))
        do_null();
    else if (!strcmp(what, "nvml"))
        do_nvml((unsigned)a);
    else
        process_command(what, a, b);
}

int main(int argc, char **argv)
{
    char line[256], what[32];
    (void)argc;
    program = argv;
    setvbuf(stdout, NULL, _IOLBF, 0);
    driver_load(&d);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long a = 0, b = 0;
        unsigned c = 0, e = 0;
        if (sscanf(line, "%31s %lu %lu %u %u", what, &a, &b, &c, &e) >= 1)
            command(what, a, b, c, e);
        fflush(stdout);
    }
    return 0;
}
