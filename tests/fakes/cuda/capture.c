/* Streams that are captured: what is put into them becomes a graph. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

enum { STATUS_NONE, STATUS_ACTIVE, STATUS_SPOILT };

struct cu_capture {
	CUgraph graph;
	int mode;
	pthread_t thread;
	bool spoilt;
	CUstream streams;
	struct cu_capture *next;
};

static struct cu_capture *captures;
static __thread int thread_mode = MODE_GLOBAL;

CUgraph cu_captured(CUstream stream, CUresult *rc)
{
	struct cu_capture *c = cu_is_stream(stream) ? stream->capture : NULL;
	*rc = c && c->spoilt ? CUDA_INVALIDATED : CUDA_SUCCESS;
	return c ? c->graph : NULL;
}

bool cu_capture_work(CUstream stream, enum cu_node_type type, const struct cu_work *work,
		     CUresult *rc)
{
	pthread_mutex_lock(&cu_lock);
	CUgraph graph = cu_captured(stream, rc);
	struct cu_node *node = graph && !*rc ? cu_graph_add(graph, type) : NULL;
	if (node && work)
		node->work = *work;
	if (graph && !node && !*rc)
		*rc = CUDA_OUT_OF_MEMORY;
	pthread_mutex_unlock(&cu_lock);
	return graph != NULL;
}

static bool forbids(const struct cu_capture *c)
{
	if (thread_mode == MODE_RELAXED || c->mode == MODE_RELAXED)
		return false;
	if (pthread_equal(c->thread, pthread_self()))
		return true;
	return c->mode == MODE_GLOBAL && thread_mode == MODE_GLOBAL;
}

CUresult cu_unsafe(void)
{
	CUresult rc = CUDA_SUCCESS;
	for (struct cu_capture *c = captures; c; c = c->next)
		if (forbids(c)) {
			c->spoilt = true;
			rc = CUDA_UNSUPPORTED;
		}
	return rc;
}

CUresult cu_waiting(CUstream stream)
{
	CUresult rc = CUDA_SUCCESS;
	pthread_mutex_lock(&cu_lock);
	for (struct cu_capture *c = captures; c; c = c->next)
		if (!stream || (cu_is_stream(stream) && stream->capture == c)) {
			c->spoilt = true;
			rc = CUDA_UNSUPPORTED;
		}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

/* With the lock held. */
static void join(CUstream stream, struct cu_capture *c)
{
	stream->capture = c;
	stream->captured_next = c->streams;
	c->streams = stream;
}

struct cu_capture *cu_capture_of(CUstream stream)
{
	return cu_is_stream(stream) ? stream->capture : NULL;
}

void cu_capture_spoil(struct cu_capture *capture)
{
	for (struct cu_capture *c = captures; c; c = c->next)
		c->spoilt = c->spoilt || c == capture;
}

void cu_capture_join(CUstream stream, struct cu_capture *capture)
{
	pthread_mutex_lock(&cu_lock);
	const struct cu_capture *c = captures;
	while (c && c != capture)
		c = c->next;
	if (c && cu_is_stream(stream) && !stream->capture)
		join(stream, capture);
	pthread_mutex_unlock(&cu_lock);
}

static CUresult begin(const char *function, CUstream stream, CUgraph graph, int mode)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!cu_is_stream(stream) || mode < MODE_GLOBAL || mode > MODE_RELAXED)
		return CUDA_UNSUPPORTED;
	struct cu_capture *c = calloc(1, sizeof *c);
	if (c && !graph)
		graph = calloc(1, sizeof *graph);
	if (!c || !graph) {
		free(c);
		return CUDA_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&cu_lock);
	*c = (struct cu_capture){.graph = graph, .mode = mode, .thread = pthread_self(),
				 .next = captures};
	captures = c;
	join(stream, c);
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture(CUstream stream)
{
	return begin(__func__, stream, NULL, MODE_GLOBAL);
}

API CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	return begin(__func__, stream, NULL, MODE_GLOBAL);
}

API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	return begin(__func__, stream, NULL, mode);
}

API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	return begin(__func__, stream, NULL, mode);
}

API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
					 const void *edges, size_t count, int mode)
{
	(void)after, (void)edges, (void)count;
	return graph ? begin(__func__, stream, graph, mode) : CUDA_INVALID_VALUE;
}

API CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
					      const CUgraphNode *after, const void *edges,
					      size_t count, int mode)
{
	(void)after, (void)edges, (void)count;
	return graph ? begin(__func__, stream, graph, mode) : CUDA_INVALID_VALUE;
}

static CUresult end(const char *function, CUstream stream, CUgraph *out)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!cu_is_stream(stream) || !out || !stream->capture)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	struct cu_capture *c = stream->capture, **link = &captures;
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	for (CUstream s = c->streams; s; s = s->captured_next)
		s->capture = NULL;
	*out = c->spoilt ? NULL : c->graph;
	rc = c->spoilt ? CUDA_INVALIDATED : CUDA_SUCCESS;
	free(c);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
	return end(__func__, stream, out);
}

API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *out)
{
	return end(__func__, stream, out);
}

static CUresult is_capturing(const char *function, CUstream stream, int *status)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!status)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	const struct cu_capture *c = cu_is_stream(stream) ? stream->capture : NULL;
	*status = !c ? STATUS_NONE : c->spoilt ? STATUS_SPOILT : STATUS_ACTIVE;
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

API CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	return is_capturing(__func__, stream, status);
}

API CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
	return is_capturing(__func__, stream, status);
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!mode || *mode < MODE_GLOBAL || *mode > MODE_RELAXED)
		return CUDA_INVALID_VALUE;
	int before = thread_mode;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}
