/* Graphs become executable, and end: what each of them takes is noted. */
#include "graph.h"

#include <stdatomic.h>

#include "gate.h"

enum { FLAG_UPLOAD = 2 };

static uint64_t number_of(CUgraphExec exec)
{
    return (uint64_t)(uintptr_t)exec;
}

static bool forget(struct ap_process *process, CUgraphExec exec, struct ap_record *record)
{
    if (!process || atomic_load_explicit(&process->graph_count, memory_order_relaxed) == 0 ||
        !ap_table_take(&process->graphs, number_of(exec), record))
        return false;
    atomic_fetch_sub(&process->graph_count, 1);
    return true;
}

/* False: no memory to remember it. */
static bool remember(struct ap_process *process, const struct ap_record *record)
{
    struct ap_record old;
    bool had_old = false;
    if (record->context == 0)
        return true;
    if (!ap_table_put(&process->graphs, record, &old, &had_old))
        return false;
    if (!had_old)
        atomic_fetch_add(&process->graph_count, 1);
    return true;
}

/* A graph that other devices' graphs last ran on is told apart by its handle, which may be given
 * out again. */
static void not_backed(struct ap_process *process, const struct ap_record *record)
{
    for (unsigned device = 0; device < AP_ORDINAL_MAX; device++) {
        struct ap_graph_memory *memory = &process->graph_memory[device];
        if (!(record->context >> device & 1))
            continue;
        ap_lock(&memory->lock);
        if (memory->backed == record->key)
            memory->backed = 0;
        ap_unlock(&memory->lock);
    }
}

struct instantiation {
    int form;
    CUgraphExec *wanted, given;
    CUgraph graph;
    CUgraphNode *bad_node;
    char *text;
    size_t room;
    unsigned long long flags;
    CUDA_GRAPH_INSTANTIATE_PARAMS *parameters;
};

enum form { PLAIN, SECOND, WITH_FLAGS, WITH_PARAMS, WITH_PARAMS_PTSZ };

static CUresult drive(void *argument)
{
    const struct real_cuda *real = real_cuda();
    struct instantiation *i = argument;
    CUgraphExec *exec = i->wanted ? &i->given : NULL;
    switch (i->form) {
    case PLAIN:
        return real->cuGraphInstantiate(exec, i->graph, i->bad_node, i->text, i->room);
    case SECOND:
        return real->cuGraphInstantiate_v2(exec, i->graph, i->bad_node, i->text, i->room);
    case WITH_FLAGS:
        return real->cuGraphInstantiateWithFlags(exec, i->graph, i->flags);
    case WITH_PARAMS:
        return real->cuGraphInstantiateWithParams(exec, i->graph, i->parameters);
    default:
        return real->cuGraphInstantiateWithParams_ptsz(exec, i->graph, i->parameters);
    }
}

static CUresult instantiate(struct instantiation *i)
{
    struct ap_process *process = ap_process();
    struct ap_record record = {0};
    if (!process)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!i->wanted || !i->graph)
        return drive(i);
    ap_graph_need(i->graph, &record);
    bool takes = record.context != 0 && i->flags & FLAG_UPLOAD;
    CUresult result = takes ? ap_graph_run(process, &record, drive, i) : drive(i);
    if (result != CUDA_SUCCESS)
        return result;
    record.key = number_of(i->given);
    if (!remember(process, &record)) {
        if (real_cuda()->cuGraphExecDestroy)
            (void)real_cuda()->cuGraphExecDestroy(i->given);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *i->wanted = i->given;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad_node, char *text,
                            size_t room)
{
    struct instantiation i = {.form = PLAIN, .wanted = exec, .graph = graph, .bad_node = bad_node,
                              .text = text, .room = room};
    return real_cuda()->cuGraphInstantiate ? instantiate(&i) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad_node, char *text,
                               size_t room)
{
    struct instantiation i = {.form = SECOND, .wanted = exec, .graph = graph, .bad_node = bad_node,
                              .text = text, .room = room};
    return real_cuda()->cuGraphInstantiate_v2 ? instantiate(&i) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    struct instantiation i = {.form = WITH_FLAGS, .wanted = exec, .graph = graph, .flags = flags};
    return real_cuda()->cuGraphInstantiateWithFlags ? instantiate(&i) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    struct instantiation i = {.form = WITH_PARAMS, .wanted = exec, .graph = graph,
                              .flags = parameters ? parameters->flags : 0,
                              .parameters = parameters};
    return real_cuda()->cuGraphInstantiateWithParams ? instantiate(&i) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    struct instantiation i = {.form = WITH_PARAMS_PTSZ, .wanted = exec, .graph = graph,
                              .flags = parameters ? parameters->flags : 0,
                              .parameters = parameters};
    return real_cuda()->cuGraphInstantiateWithParams_ptsz ? instantiate(&i) : CUDA_ERROR_NOT_FOUND;
}

/* An update may change how much a memory node takes (measured). */
static void updated(CUgraphExec exec, CUgraph graph)
{
    struct ap_process *process = ap_process();
    struct ap_record record = {.key = number_of(exec)};
    if (!process || !exec || !graph)
        return;
    ap_graph_need(graph, &record);
    if (record.context == 0)
        return;
    not_backed(process, &record);
    (void)remember(process, &record);
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *bad_node, int *what)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuGraphExecUpdate)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuGraphExecUpdate(exec, graph, bad_node, what);
    if (result == CUDA_SUCCESS)
        updated(exec, graph);
    return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *what)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuGraphExecUpdate_v2)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuGraphExecUpdate_v2(exec, graph, what);
    if (result == CUDA_SUCCESS)
        updated(exec, graph);
    return result;
}

/* The record is out before the driver can give the handle to a new graph. */
CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    struct ap_record record;
    if (!real->cuGraphExecDestroy)
        return CUDA_ERROR_NOT_FOUND;
    bool known = forget(process, exec, &record);
    if (known)
        not_backed(process, &record);
    ap_gate_graph_ended(exec);
    CUresult result = real->cuGraphExecDestroy(exec);
    if (known && result != CUDA_SUCCESS)
        (void)remember(process, &record);
    return result;
}
