/* The load's command `run`: batches until a time is reached. How far it has come is seen by events
 * between the kernels, at least every STEP of work, so that a batch may be longer than the run. */
#define _GNU_SOURCE
#include "load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP = 2000000, STEPS = 1 << 20, EVENTS = 64 };

struct step {
    unsigned context;
    uint64_t count, at;
};

struct worker {
    unsigned context;
    uint64_t length, batch, every, until;
    enum how how;
    void *streams[LOAD_STREAMS], *graph;
    unsigned stream; /* of the last launch; always the first one but for `streams` */
    /* Recorded and not yet seen: a ring. */
    void *event[EVENTS];
    uint64_t count[EVENTS], head, tail;
    pthread_t thread;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct step *steps;
static unsigned long step_count;

static void came_on(const struct worker *w, uint64_t count)
{
    uint64_t at = now();
    pthread_mutex_lock(&lock);
    if (step_count < STEPS)
        steps[step_count++] = (struct step){w->context, count, at};
    pthread_mutex_unlock(&lock);
}

static unsigned streams_of(const struct worker *w)
{
    return w->how == STREAMS ? LOAD_STREAMS : 1;
}

/* Sees which events are reached; waits for the oldest ones until at most `left` are not. */
static void see(struct worker *w, uint64_t left)
{
    uint64_t count = 0;
    while (w->tail < w->head) {
        void *event = w->event[w->tail % EVENTS];
        if (w->head - w->tail > left)
            check(cu.event_synchronize(event), "cuEventSynchronize");
        else if (cu.event_query(event) != 0)
            break;
        count = w->count[w->tail % EVENTS];
        w->tail++;
        came_on(w, count);
    }
}

static void mark(struct worker *w, uint64_t count)
{
    see(w, EVENTS - 1);
    w->count[w->head % EVENTS] = count;
    check(cu.event_record(w->event[w->head % EVENTS], w->streams[w->stream]), "cuEventRecord");
    w->head++;
}

static void plain_batch(struct worker *w)
{
    uint64_t since = 0;
    for (uint64_t i = 0; i < w->batch && now() < w->until; i++) {
        w->stream = (w->stream + 1) % streams_of(w);
        launch_one(&contexts[w->context], w->length, w->how, w->streams[w->stream]);
        if (++since == w->every) {
            mark(w, since);
            since = 0;
        }
    }
    see(w, 0);
    for (unsigned i = 0; i < streams_of(w); i++)
        check(cu.stream_synchronize(w->streams[i]), "cuStreamSynchronize");
    if (since)
        came_on(w, since);
}

static void graph_batch(struct worker *w)
{
    check(cu.launch_graph(w->graph, w->streams[0]), "cuGraphLaunch");
    check(cu.stream_synchronize(w->streams[0]), "cuStreamSynchronize");
    came_on(w, w->batch);
}

static void make_graph(struct worker *w)
{
    void *graph;
    check(cu.capture(w->streams[0], 1), "cuStreamBeginCapture");
    for (uint64_t i = 0; i < w->batch; i++)
        launch_one(&contexts[w->context], w->length, PLAIN, w->streams[0]);
    check(cu.capture_end(w->streams[0], &graph), "cuStreamEndCapture");
    check(cu.instantiate(&w->graph, graph, 0), "cuGraphInstantiate");
    check(cu.graph_destroy(graph), "cuGraphDestroy");
}

static void *work(void *argument)
{
    struct worker *w = argument;
    check(cu.set(contexts[w->context].context), "cuCtxSetCurrent");
    (void)spin_of(&contexts[w->context], w->length); /* not within a capture */
    for (unsigned i = 0; i < streams_of(w); i++)
        check(cu.stream_create(&w->streams[i], 1), "cuStreamCreate");
    for (unsigned i = 0; i < EVENTS; i++)
        check(cu.event_create(&w->event[i], 2), "cuEventCreate");
    if (w->how == GRAPH)
        make_graph(w);
    while (now() < w->until) {
        if (w->how == GRAPH)
            graph_batch(w);
        else
            plain_batch(w);
    }
    if (w->how == GRAPH)
        check(cu.exec_destroy(w->graph), "cuGraphExecDestroy");
    for (unsigned i = 0; i < EVENTS; i++)
        check(cu.event_destroy(w->event[i]), "cuEventDestroy");
    for (unsigned i = 0; i < streams_of(w); i++)
        check(cu.stream_destroy(w->streams[i]), "cuStreamDestroy");
    return NULL;
}

void run(uint64_t length, uint64_t batch, enum how how, unsigned threads, uint64_t until)
{
    static struct worker workers[LOAD_THREADS];
    uint64_t every = STEP / (length ? length : 1);
    if (!steps)
        steps = calloc(STEPS, sizeof *steps);
    if (!steps || threads > LOAD_THREADS)
        check(1, "run");
    step_count = 0;
    for (unsigned i = 0; i < threads; i++) {
        workers[i] = (struct worker){.context = i % context_count, .length = length,
                                     .batch = batch, .every = every ? every : 1, .how = how,
                                     .until = until};
        check(pthread_create(&workers[i].thread, NULL, work, &workers[i]), "pthread_create");
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    for (unsigned long i = 0; i < step_count; i++)
        printf("%u %lu %lu\n", steps[i].context, (unsigned long)steps[i].count,
               (unsigned long)steps[i].at);
    printf("end\n");
}
