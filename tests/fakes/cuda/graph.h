/* Graphs, and streams that are captured into one. */
#ifndef FAKE_CUDA_GRAPH_H
#define FAKE_CUDA_GRAPH_H

#include "cuda.h"

enum cu_node_type { CU_NODE_KERNEL = 0, CU_NODE_MEMCPY = 1, CU_NODE_MEMSET = 2, CU_NODE_CHILD = 4,
		    CU_NODE_EMPTY = 5, CU_NODE_MEM_ALLOC = 10, CU_NODE_MEM_FREE = 11 };

/* Work that a stream does at once, or a graph when it is launched. */
struct cu_work {
	bool to_host, from_host;
	uintptr_t to, from; /* no `from`: a fill */
	size_t width, count;
	uint32_t value;
	uint64_t length; /* a kernel's, in nanoseconds */
};

struct cu_node {
	enum cu_node_type type;
	struct cu_work work;
	uintptr_t address; /* of memory nodes */
	size_t bytes;
	CUdevice device;
	struct cu_node *next;
};

struct cu_graph {
	struct cu_node *first, *last;
	unsigned execs;
};

/* What a stream waits for: a value on the host, or more. NULL: nothing. */
struct cu_wait {
	const volatile uint32_t *at;
	uint32_t value;
};

struct cu_stream {
	unsigned flags;
	int priority;
	CUcontext ctx;
	struct cu_capture *capture;
	struct cu_stream *captured_next; /* of the same capture */
	struct cu_wait wait;
	uint64_t last; /* its latest work, see timeline.h */
};

static inline bool cu_is_stream(CUstream stream)
{
	return (uintptr_t)stream > 2;
}

/* Whether it is not yet so. */
bool cu_still(struct cu_wait wait);

/* The capture that a stream is in or NULL, and another stream that joins it, unless it is over. */
struct cu_capture *cu_capture_of(CUstream stream);
void cu_capture_join(CUstream stream, struct cu_capture *capture);

/* Spoils it, unless it is over. With the lock held. */
void cu_capture_spoil(struct cu_capture *capture);

/* A new stream of a context. Without the lock. */
CUresult cu_new_stream(CUcontext ctx, CUstream *out, unsigned flags, int priority);

/* Adds a node; NULL without memory. With the lock held. */
struct cu_node *cu_graph_add(CUgraph graph, enum cu_node_type type);

/* An alloc node of `bytes`; a free node for an address, which must be an alloc node's. */
CUresult cu_graph_alloc(CUgraph graph, CUdevice device, size_t bytes, struct cu_node **out);
CUresult cu_graph_free(CUgraph graph, uintptr_t address);

/* The graph that a stream is captured into, or NULL; CUDA_INVALIDATED in *rc when that has failed.
 * With the lock held. */
CUgraph cu_captured(CUstream stream, CUresult *rc);

/* Puts work into the stream's graph: true, and *rc is the call's answer. False: do it at once. */
bool cu_capture_work(CUstream stream, enum cu_node_type type, const struct cu_work *work,
		     CUresult *rc);

/* CUDA_UNSUPPORTED, and captures spoilt, when something is captured that forbids this thread to do
 * what is not stream-ordered. With the lock held. */
CUresult cu_unsafe(void);

/* The same for a call that waits for a stream; NULL: for all of them. */
CUresult cu_waiting(CUstream stream);

/* What fills and copies within a card take of its time, on one with `memory_gb_s`; others go past
 * the multiprocessors. Nanoseconds. */
uint64_t cu_work_time(CUdevice device, const struct cu_work *work);

/* Does the work. Without the lock. */
CUresult cu_work(const char *function, const struct cu_work *work);

#endif
