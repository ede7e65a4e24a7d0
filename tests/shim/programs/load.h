/* What the files of the load share. */
#ifndef TEST_LOAD_H
#define TEST_LOAD_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { LOAD_CONTEXTS = 16, LOAD_THREADS = 64, LOAD_KERNELS = 32, LOAD_STREAMS = 4 };

enum how { PLAIN, GRAPH, EX, COOPERATIVE, LEGACY, SAME, STREAMS };

/* CUlaunchConfig. */
struct config {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void *stream;
    void *attributes;
    unsigned attribute_count;
};

struct cuda {
    int (*init)(unsigned);
    int (*attribute)(int *, int, int);
    int (*retain)(void **, int);
    int (*set)(void *);
    int (*load)(void **, const void *);
    int (*function)(void **, void *, const char *);
    int (*synchronize)(void);
    int (*alloc)(unsigned long long *, size_t);
    int (*copy)(void *, unsigned long long, size_t);
    int (*stream_query)(void *);
    int (*stream_create)(void **, unsigned);
    int (*stream_destroy)(void *);
    int (*stream_synchronize)(void *);
    int (*event_create)(void **, unsigned);
    int (*event_destroy)(void *);
    int (*event_record)(void *, void *);
    int (*event_query)(void *);
    int (*event_synchronize)(void *);
    int (*elapsed)(float *, void *, void *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **);
    int (*launch_ex)(const struct config *, void *, void **, void **);
    int (*launch_cooperative)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, void *, void **);
    int (*block_shape)(void *, int, int, int);
    int (*parameter)(void *, int, const void *, unsigned);
    int (*parameter_size)(void *, unsigned);
    int (*launch_grid)(void *, int, int, void *);
    int (*capture)(void *, int);
    int (*capture_end)(void *, void **);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*exec_destroy)(void *);
    int (*graph_destroy)(void *);
    int (*launch_graph)(void *, void *);
};

/* Kernels of one length are one function, as they are in a program; others are others. */
struct kernel {
    uint64_t length;
    void *spin;
};

struct context {
    void *context;
    unsigned blocks, kernel_count;
    struct kernel kernels[LOAD_KERNELS];
};

extern struct cuda cu;
extern struct context contexts[LOAD_CONTEXTS];
extern unsigned context_count;

/* Nanoseconds on CLOCK_MONOTONIC. */
uint64_t now(void);

/* Ends the program when a result is not 0. */
void check(int result, const char *what);

/* The kernel of this length, loaded if need be, in the context that is current. */
void *spin_of(struct context *c, uint64_t length);

/* Launches a kernel of so many nanoseconds, in the context that is current. */
void launch_one(struct context *c, uint64_t length, enum how how, void *stream);

/* The command `run`. */
void run(uint64_t length, uint64_t batch, enum how how, unsigned threads, uint64_t until);

#endif
