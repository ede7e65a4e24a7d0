/* How much memory the nodes of a graph need. */
#include "../common/sys.h"
#include "follow.h"
#include "graph.h"

enum { NODE_CHILD = 4, NODE_MEM_ALLOC = 10, DEEPEST = 16 };

struct piece {
    CUdeviceptr pointer;
    uint64_t bytes;
};

static void sort(struct piece *pieces, size_t count)
{
    for (size_t gap = count / 2; gap > 0; gap /= 2)
        for (size_t i = gap; i < count; i++) {
            struct piece moving = pieces[i];
            size_t to = i;
            for (; to >= gap && pieces[to - gap].pointer > moving.pointer; to -= gap)
                pieces[to] = pieces[to - gap];
            pieces[to] = moving;
        }
}

/* Nodes that have the same address are never in use together. */
static uint64_t sum_of(struct piece *pieces, size_t count)
{
    uint64_t sum = 0;
    sort(pieces, count);
    for (size_t i = 0; i < count;) {
        uint64_t most = 0;
        CUdeviceptr pointer = pieces[i].pointer;
        for (; i < count && pieces[i].pointer == pointer; i++)
            most = pieces[i].bytes > most ? pieces[i].bytes : most;
        if (__builtin_add_overflow(sum, ap_chunks(most), &sum))
            return UINT64_MAX;
    }
    return sum;
}

static void add_graph(CUgraph graph, struct ap_record *record, int depth);

static bool piece_of(CUgraphNode node, struct ap_record *record, struct piece *piece)
{
    const struct real_cuda *real = real_cuda();
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    if (!real->cuGraphMemAllocNodeGetParams ||
        real->cuGraphMemAllocNodeGetParams(node, &parameters) != CUDA_SUCCESS ||
        parameters.pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        parameters.pool.location.id < 0 || parameters.pool.location.id >= (int)AP_ORDINAL_MAX)
        return false;
    record->context |= UINT64_C(1) << parameters.pool.location.id;
    *piece = (struct piece){.pointer = parameters.pointer, .bytes = parameters.bytes};
    return true;
}

static void add_nodes(const CUgraphNode *nodes, size_t count, struct piece *pieces,
                      struct ap_record *record, int depth)
{
    const struct real_cuda *real = real_cuda();
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraph child = NULL;
        int type = -1;
        if (real->cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == NODE_MEM_ALLOC)
            found += piece_of(nodes[i], record, &pieces[found]);
        else if (type == NODE_CHILD && depth < DEEPEST && real->cuGraphChildGraphNodeGetGraph &&
                 real->cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
            add_graph(child, record, depth + 1);
    }
    if (__builtin_add_overflow(record->bytes, sum_of(pieces, found), &record->bytes))
        record->bytes = UINT64_MAX;
}

static void add_graph(CUgraph graph, struct ap_record *record, int depth)
{
    const struct real_cuda *real = real_cuda();
    size_t count = 0;
    if (!real->cuGraphGetNodes || !real->cuGraphNodeGetType ||
        real->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    size_t bytes = count * (sizeof(struct piece) + sizeof(CUgraphNode));
    struct piece *pieces = ap_map_private(bytes);
    if (!pieces) {
        /* Not known: as much as there is, so that it is refused rather than let through. */
        record->bytes = UINT64_MAX;
        record->context |= 1;
        return;
    }
    CUgraphNode *nodes = (CUgraphNode *)(void *)(pieces + count);
    if (real->cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
        add_nodes(nodes, count, pieces, record, depth);
    ap_unmap(pieces, bytes);
}

void ap_graph_need(CUgraph graph, struct ap_record *record)
{
    record->bytes = 0;
    record->context = 0;
    add_graph(graph, record, 0);
}
