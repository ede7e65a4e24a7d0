/* Executable graphs and the memory that they take: chunks, at the first upload or launch, which
 * other graphs use when it is not in use. Only a trim gives back what is not. */
#define _GNU_SOURCE
#include "timeline.h"

#include <stdlib.h>

#define CHUNK (32 * MIB)

enum { AUTO_FREE = 1, UPLOAD = 2 };

enum { GRAPH_USED, GRAPH_USED_HIGH, GRAPH_RESERVED, GRAPH_RESERVED_HIGH };

struct cu_exec {
	struct cu_graph nodes; /* copied */
	CUgraph graph;
	unsigned long long flags;
	unsigned live;         /* allocations not freed yet */
	bool destroyed;
	struct cu_exec *next;
};

static struct cu_exec *execs;
static uint64_t reserved[FG_MAX_GPUS], reserved_high[FG_MAX_GPUS];

static bool has_memory(const struct cu_graph *graph)
{
	const struct cu_node *n = graph->first;
	while (n && n->type != CU_NODE_MEM_ALLOC)
		n = n->next;
	return n != NULL;
}

static bool seen_before(const struct cu_graph *graph, const struct cu_node *node)
{
	const struct cu_node *n = graph->first;
	while (n != node && n->address != node->address)
		n = n->next;
	return n != node;
}

static uint64_t need(const struct cu_exec *exec, CUdevice device)
{
	uint64_t sum = 0;
	for (const struct cu_node *n = exec->nodes.first; n; n = n->next)
		if (n->type == CU_NODE_MEM_ALLOC && n->device == device &&
		    !seen_before(&exec->nodes, n))
			sum += cu_round(n->bytes, CHUNK);
	return sum;
}

static uint64_t in_use(CUdevice device)
{
	uint64_t sum = 0;
	for (const struct cu_exec *e = execs; e; e = e->next)
		if (e->live)
			sum += need(e, device);
	return sum;
}

/* As much as there is, also when that is not enough. */
static CUresult back(const struct cu_exec *exec, CUdevice device)
{
	uint64_t wanted = in_use(device) + (exec->live ? 0 : need(exec, device));
	CUresult rc = CUDA_SUCCESS;
	while (reserved[device] < wanted && !rc) {
		rc = cu_charge(device, CHUNK);
		reserved[device] += rc ? 0 : CHUNK;
	}
	if (reserved[device] > reserved_high[device])
		reserved_high[device] = reserved[device];
	return rc;
}

static CUresult back_all(const struct cu_exec *exec)
{
	CUresult rc = CUDA_SUCCESS;
	for (CUdevice d = 0; !rc && d < (CUdevice)cu_device_count(); d++)
		rc = back(exec, d);
	return rc;
}

static CUresult copy_nodes(struct cu_graph *to, const struct cu_graph *from)
{
	for (const struct cu_node *n = from->first; n; n = n->next) {
		struct cu_node *copy = cu_graph_add(to, n->type);
		if (!copy)
			return CUDA_OUT_OF_MEMORY;
		copy->work = n->work;
		copy->address = n->address;
		copy->bytes = n->bytes;
		copy->device = n->device;
	}
	return CUDA_SUCCESS;
}

static CUresult instantiate(const char *function, CUgraphExec *out, CUgraph graph,
			    unsigned long long flags)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!out || !graph)
		return CUDA_INVALID_VALUE;
	struct cu_exec *exec = calloc(1, sizeof *exec);
	if (!exec)
		return CUDA_OUT_OF_MEMORY;
	pthread_mutex_lock(&cu_lock);
	exec->graph = graph;
	exec->flags = flags;
	rc = graph->execs && has_memory(graph) ? CUDA_NOT_SUPPORTED : copy_nodes(&exec->nodes, graph);
	if (!rc && flags & UPLOAD)
		rc = back_all(exec);
	if (!rc) {
		graph->execs++;
		exec->next = execs;
		execs = exec;
		*out = exec;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *text,
				size_t room)
{
	(void)bad, (void)text, (void)room;
	return instantiate(__func__, out, graph, 0);
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *text,
				   size_t room)
{
	(void)bad, (void)text, (void)room;
	return instantiate(__func__, out, graph, 0);
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	return instantiate(__func__, out, graph, flags);
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
					  const unsigned long long *parameters)
{
	return parameters ? instantiate(__func__, out, graph, *parameters) : CUDA_INVALID_VALUE;
}

API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph,
					       const unsigned long long *parameters)
{
	return parameters ? instantiate(__func__, out, graph, *parameters) : CUDA_INVALID_VALUE;
}

static void drop_nodes(struct cu_graph *graph)
{
	while (graph->first) {
		struct cu_node *node = graph->first;
		graph->first = node->next;
		free(node);
	}
	graph->last = NULL;
}

static CUresult update(const char *function, CUgraphExec exec, CUgraph graph)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!exec || !graph)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	drop_nodes(&exec->nodes);
	rc = copy_nodes(&exec->nodes, graph);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *bad, int *what)
{
	(void)bad, (void)what;
	return update(__func__, exec, graph);
}

API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *what)
{
	(void)what;
	return update(__func__, exec, graph);
}

static void end(struct cu_exec *exec)
{
	struct cu_exec **link = &execs;
	while (*link != exec)
		link = &(*link)->next;
	*link = exec->next;
	drop_nodes(&exec->nodes);
	free(exec);
}

/* One whose memory is in use is kept until that is freed. */
API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!exec)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	exec->destroyed = true;
	if (!exec->live)
		end(exec);
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

void cu_graph_freed(struct cu_alloc *alloc)
{
	struct cu_exec *exec = alloc->exec;
	if (--exec->live == 0 && exec->destroyed)
		end(exec);
}

static CUresult begin(struct cu_exec *exec, const struct cu_node *node)
{
	struct cu_alloc *a = calloc(1, sizeof *a);
	if (!a)
		return CUDA_OUT_OF_MEMORY;
	*a = (struct cu_alloc){.base = node->address, .size = node->bytes, .kind = CU_GRAPH,
			       .mapped = cu_round(node->bytes, CU_PAGE), .exec = exec};
	if (!cu_add(a)) {
		free(a);
		return CUDA_OUT_OF_MEMORY;
	}
	exec->live++;
	return CUDA_SUCCESS;
}

static void finish(uintptr_t address)
{
	struct cu_alloc *a = cu_find(address);
	if (!a || a->kind != CU_GRAPH)
		return;
	cu_remove(a);
	cu_graph_freed(a);
	free(a);
}

/* What an earlier launch left allocated is freed first, or in the way. */
static CUresult ready(struct cu_exec *exec)
{
	CUresult rc = CUDA_SUCCESS;
	pthread_mutex_lock(&cu_lock);
	if (exec->live && !(exec->flags & AUTO_FREE))
		rc = CUDA_INVALID_VALUE;
	for (struct cu_node *n = exec->nodes.first; !rc && n; n = n->next)
		if (n->type == CU_NODE_MEM_ALLOC)
			finish(n->address);
	if (!rc)
		rc = back_all(exec);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

static CUresult run(const char *function, struct cu_exec *exec, const struct cu_node *node,
		    CUcontext ctx)
{
	CUresult rc = CUDA_SUCCESS;
	if (node->type == CU_NODE_KERNEL)
		fg_count_launch(cu_device(ctx->device)->gpu.key);
	if (node->type == CU_NODE_MEMCPY || node->type == CU_NODE_MEMSET)
		return cu_work(function, &node->work);
	pthread_mutex_lock(&cu_lock);
	if (node->type == CU_NODE_MEM_ALLOC)
		rc = begin(exec, node);
	if (node->type == CU_NODE_MEM_FREE)
		finish(node->address);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

/* What its work takes together; false when it has no kernels and no time. */
static bool length_of(const struct cu_graph *graph, uint64_t *sum)
{
	bool any = false;
	*sum = 0;
	for (const struct cu_node *n = graph->first; n; n = n->next)
		if (n->type == CU_NODE_KERNEL || n->work.length) {
			any = true;
			*sum += n->work.length;
		}
	return any;
}

static CUresult launch(const char *function, CUgraphExec exec, CUstream stream)
{
	CUcontext ctx;
	struct cu_work kernels = {0};
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!exec)
		return CUDA_INVALID_VALUE;
	bool any = length_of(&exec->nodes, &kernels.length);
	/* A child in the stream's graph: as much as its kernels. */
	if (any && cu_capture_work(stream, CU_NODE_KERNEL, &kernels, &rc))
		return rc;
	rc = ready(exec);
	for (const struct cu_node *n = exec->nodes.first; !rc && n; n = n->next)
		rc = run(function, exec, n, ctx);
	if (!rc && any)
		cu_time_submit(ctx, stream, kernels.length);
	return rc;
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return launch(__func__, exec, stream);
}

API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return launch(__func__, exec, stream);
}

static CUresult upload(const char *function, CUgraphExec exec)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!exec)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	rc = back_all(exec);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	(void)stream;
	return upload(__func__, exec);
}

API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	(void)stream;
	return upload(__func__, exec);
}

API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!cu_device(device))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	uint64_t least = in_use(device);
	if (reserved[device] > least) {
		cu_uncharge(device, reserved[device] - least);
		reserved[device] = least;
	}
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int which, void *value)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!value || which < GRAPH_USED || which > GRAPH_RESERVED_HIGH)
		return CUDA_INVALID_VALUE;
	if (!cu_device(device))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	*(uint64_t *)value = which == GRAPH_USED || which == GRAPH_RESERVED ? reserved[device]
									    : reserved_high[device];
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}
