/* Graphs and their nodes, which are done in the order in which they were added. */
#define _GNU_SOURCE
#include "code.h"
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* CUDA_MEM_ALLOC_NODE_PARAMS. */
struct alloc_parameters {
	int type, handle_types, location_type, location;
	unsigned char other[72];
	const void *access;
	size_t access_count, bytes;
	CUdeviceptr address;
};

_Static_assert(sizeof(struct alloc_parameters) == 120, "as in the driver");

/* CUgraphNodeParams. */
struct any_parameters {
	int type, reserved[3];
	union {
		struct alloc_parameters alloc;
		CUdeviceptr address;
		long long space[29];
	};
	long long end;
};

_Static_assert(sizeof(struct any_parameters) == 256, "as in the driver");

struct cu_node *cu_graph_add(CUgraph graph, enum cu_node_type type)
{
	struct cu_node *node = calloc(1, sizeof *node);
	if (!node)
		return NULL;
	node->type = type;
	if (graph->last)
		graph->last->next = node;
	else
		graph->first = node;
	graph->last = node;
	return node;
}

API CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || flags)
		return CUDA_INVALID_VALUE;
	*out = calloc(1, sizeof **out);
	return *out ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

/* What executable graphs need of it, they have copied; addresses are never given out again. */
API CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!graph)
		return CUDA_INVALID_VALUE;
	while (graph->first) {
		struct cu_node *node = graph->first;
		graph->first = node->next;
		free(node);
	}
	free(graph);
	return CUDA_SUCCESS;
}

/* What an earlier node of the same size had and has freed, is had again. */
static uintptr_t freed_before(const struct cu_graph *graph, size_t bytes)
{
	uintptr_t found = 0;
	for (const struct cu_node *n = graph->first; n; n = n->next) {
		if (n->type != CU_NODE_MEM_FREE && n->address == found)
			found = 0;
		if (n->type != CU_NODE_MEM_FREE)
			continue;
		for (const struct cu_node *a = graph->first; a != n; a = a->next)
			if (a->type == CU_NODE_MEM_ALLOC && a->address == n->address && a->bytes == bytes)
				found = a->address;
	}
	return found;
}

CUresult cu_graph_alloc(CUgraph graph, CUdevice device, size_t bytes, struct cu_node **out)
{
	if (!bytes)
		return CUDA_INVALID_VALUE;
	uintptr_t address = freed_before(graph, bytes);
	if (!address)
		address = (uintptr_t)cu_map(cu_round(bytes, CU_PAGE));
	struct cu_node *node = address ? cu_graph_add(graph, CU_NODE_MEM_ALLOC) : NULL;
	if (!node)
		return CUDA_OUT_OF_MEMORY;
	node->address = address;
	node->bytes = bytes;
	node->device = device;
	*out = node;
	return CUDA_SUCCESS;
}

CUresult cu_graph_free(CUgraph graph, uintptr_t address)
{
	const struct cu_node *n = graph->first;
	while (n && (n->type != CU_NODE_MEM_ALLOC || n->address != address))
		n = n->next;
	if (!n)
		return CUDA_INVALID_VALUE;
	struct cu_node *node = cu_graph_add(graph, CU_NODE_MEM_FREE);
	if (!node)
		return CUDA_OUT_OF_MEMORY;
	node->address = address;
	return CUDA_SUCCESS;
}

static CUresult add_alloc(CUgraph graph, struct alloc_parameters *p, struct cu_node **out)
{
	if (p->type != 1 || p->location_type != 1 || !cu_device(p->location))
		return CUDA_INVALID_VALUE;
	CUresult rc = cu_graph_alloc(graph, p->location, p->bytes, out);
	if (!rc)
		p->address = (*out)->address;
	return rc;
}

API CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
				    size_t count, void *parameters)
{
	CUresult rc = cu_enter(__func__);
	(void)after, (void)count;
	if (rc)
		return rc;
	if (!out || !graph || !parameters)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	rc = add_alloc(graph, parameters, out);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
				   size_t count, CUdeviceptr address)
{
	CUresult rc = cu_enter(__func__);
	(void)after, (void)count;
	if (rc)
		return rc;
	if (!out || !graph)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	rc = cu_graph_free(graph, (uintptr_t)address);
	if (!rc)
		*out = graph->last;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

static CUresult add_node(const char *function, CUgraphNode *out, CUgraph graph, void *parameters)
{
	CUresult rc = cu_enter(function);
	struct any_parameters *p = parameters;
	if (rc)
		return rc;
	if (!out || !graph || !p)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	if (p->type == CU_NODE_MEM_ALLOC) {
		rc = add_alloc(graph, &p->alloc, out);
	} else if (p->type == CU_NODE_MEM_FREE) {
		rc = cu_graph_free(graph, (uintptr_t)p->address);
		*out = graph->last;
	} else {
		rc = CUDA_NOT_SUPPORTED;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
			    void *parameters)
{
	(void)after, (void)count;
	return add_node(__func__, out, graph, parameters);
}

API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
			       const void *edges, size_t count, void *parameters)
{
	(void)after, (void)edges, (void)count;
	return add_node(__func__, out, graph, parameters);
}

/* CUDA_KERNEL_NODE_PARAMS, as far as both versions have it. */
struct kernel_parameters {
	CUfunction kernel;
	unsigned gx, gy, gz, bx, by, bz, shared;
	void **parameters;
	void **extra;
};

static CUresult add_kernel(const char *function, CUgraphNode *out, CUgraph graph,
			   const struct kernel_parameters *p)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!out || !graph || !p || !p->kernel)
		return CUDA_INVALID_VALUE;
	uint64_t length = cu_kernel_length(p->kernel, p->parameters);
	pthread_mutex_lock(&cu_lock);
	*out = cu_graph_add(graph, CU_NODE_KERNEL);
	if (*out)
		(*out)->work.length = length;
	pthread_mutex_unlock(&cu_lock);
	return *out ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

API CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
				  size_t count, const struct kernel_parameters *parameters)
{
	(void)after, (void)count;
	return add_kernel(__func__, out, graph, parameters);
}

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
				     size_t count, const struct kernel_parameters *parameters)
{
	(void)after, (void)count;
	return add_kernel(__func__, out, graph, parameters);
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	CUresult rc = cu_enter(__func__);
	size_t n = 0;
	if (rc)
		return rc;
	if (!graph || !count)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	for (struct cu_node *node = graph->first; node && (!nodes || n < *count); node = node->next) {
		if (nodes)
			nodes[n] = node;
		n++;
	}
	*count = n;
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!node || !type)
		return CUDA_INVALID_VALUE;
	*type = node->type;
	return CUDA_SUCCESS;
}

API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, void *parameters)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!node || !parameters || node->type != CU_NODE_MEM_ALLOC)
		return CUDA_INVALID_VALUE;
	*(struct alloc_parameters *)parameters = (struct alloc_parameters){
		.type = 1, .location_type = 1, .location = node->device,
		.bytes = node->bytes, .address = node->address};
	return CUDA_SUCCESS;
}

/* Memory nodes cannot be in a child, and there are no other children here. */
API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	(void)node, (void)graph;
	CUresult rc = cu_enter(__func__);
	return rc ? rc : CUDA_INVALID_VALUE;
}
