/* The part of the CUDA driver's interface that the simulated library has, and what its files
 * share. Numbers are facts of the interface; behaviour follows what driver 580.159.04 did. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "fakegpu.h"

#include <pthread.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct cu_ctx *CUcontext;
typedef struct cu_pool *CUmemoryPool;
typedef struct cu_stream *CUstream;
typedef struct cu_event *CUevent;
typedef struct cu_module *CUmodule;
typedef struct cu_library *CUlibrary;
typedef struct cu_green *CUgreenCtx;
typedef struct cu_function *CUfunction;
typedef struct cu_graph *CUgraph;
typedef struct cu_node *CUgraphNode;
typedef struct cu_exec *CUgraphExec;
typedef unsigned long long CUhandle;

enum {
	CUDA_SUCCESS = 0,
	CUDA_INVALID_VALUE = 1,
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_NOT_INITIALIZED = 3,
	CUDA_NO_DEVICE = 100,
	CUDA_INVALID_DEVICE = 101,
	CUDA_INVALID_CONTEXT = 201,
	CUDA_FILE_NOT_FOUND = 301,
	CUDA_INVALID_HANDLE = 400,
	CUDA_NOT_FOUND = 500,
	CUDA_NOT_READY = 600,
	CUDA_ILLEGAL_ADDRESS = 700,
	CUDA_CONTEXT_IS_DESTROYED = 709,
	CUDA_NOT_SUPPORTED = 801,
	CUDA_MPS_CONNECTION_FAILED = 805,
	CUDA_MPS_RPC_FAILURE = 806,
	CUDA_MPS_SERVER_NOT_READY = 807,
	CUDA_UNSUPPORTED = 900, /* while a stream is captured */
	CUDA_INVALIDATED = 901, /* so is the capture */
	CUDA_CAPTURED_EVENT = 907,
	CUDA_UNKNOWN = 999,
};

typedef struct {
	unsigned char bytes[16];
} CUuuid;

/* ---- devices ------------------------------------------------------------------------ */

struct cu_device {
	struct fg_gpu gpu;      /* as it was at cuInit */
	uint64_t capacity;      /* usable bytes */
	struct cu_ctx *primary; /* made at the first retain, then kept */
	struct cu_pool *default_pool, *pool;
};

/* Initialised, not forked since, no fault on record for the function. */
CUresult cu_enter(const char *function);

/* The device, or NULL when the ordinal is not one. */
struct cu_device *cu_device(CUdevice ordinal);
unsigned cu_device_count(void);

/* Applies CUDA_VISIBLE_DEVICES to the keys of all cards; as the driver's cuInit answers. */
CUresult cu_select(const struct fg_conf *conf, unsigned keys[FG_MAX_GPUS], unsigned *count);

/* Charges a device's card; CUDA_OUT_OF_MEMORY when the card is full. */
CUresult cu_charge(CUdevice ordinal, uint64_t bytes);
void cu_uncharge(CUdevice ordinal, uint64_t bytes);

/* ---- contexts ----------------------------------------------------------------------- */

struct cu_block;
struct cu_alloc;

struct cu_ctx {
	CUdevice device;
	bool primary, active;
	unsigned references, flags, version;
	unsigned long long id;
	uint64_t deferred;       /* freed in stream order, not yet given back */
	struct cu_block *blocks; /* small allocations */
	struct cu_block *array_blocks; /* small arrays: they share with nothing else */
	struct cu_alloc *allocs; /* everything that dies with the context */
	struct cu_ctx *parent;   /* of a green context: the primary, which owns what it allocates */
	unsigned uses;           /* of cuCtxAttach and cuCtxDetach */
	unsigned streams, streams_paid;
	uint64_t extra;          /* streams, stacks and heap, until the context ends */
	unsigned ends;     /* how often it was ended, with its events */
	size_t stack, heap;      /* cuCtxSetLimit */
	bool heap_taken;
	struct fg_queue *queue;  /* on a card that executes in time, see timeline.h */
	struct cu_event *first, *last; /* that wait for their time, in its order */
	struct cu_ctx *next;
};

/* Guards contexts, memory and pools. */
extern pthread_mutex_t cu_lock;

/* cu_enter and a usable current context: 0, 201 or 709. Call without the lock. */
CUresult cu_current(const char *function, CUcontext *ctx);

/* ---- memory ------------------------------------------------------------------------- */

enum cu_kind { CU_LARGE, CU_SMALL, CU_MANAGED, CU_HOST, CU_ASYNC, CU_ARRAY, CU_SMALL_ARRAY,
	       CU_GRAPH, CU_IMPORT, CU_EXTERNAL };

struct cu_alloc {
	uintptr_t base;
	size_t size;     /* as asked for */
	uint64_t charge; /* on the card, where it is the allocation's own */
	size_t mapped;
	enum cu_kind kind;
	int object; /* from 1: others may hold its memory, too (fg_object_make) */
	struct cu_ctx *ctx;
	struct cu_block *block;
	struct cu_pool *pool;
	struct cu_exec *exec;
	struct cu_alloc *next, *previous;
};

#define CU_PAGE (UINT64_C(2) << 20)

uint64_t cu_round(uint64_t bytes, uint64_t unit);

/* Address space for a piece of device memory, aligned to CU_PAGE. Readable and writable up to
 * a size that a test machine can afford, bare addresses above it. NULL when there is none. */
void *cu_map(size_t bytes);
bool cu_backed(size_t bytes);
void cu_unmap(void *base, size_t bytes);

/* The allocation that holds an address, or NULL. With the lock held. */
struct cu_alloc *cu_find(uintptr_t address);

/* Puts an allocation on the books, takes it off; with the lock held. */
bool cu_add(struct cu_alloc *alloc);
void cu_remove(struct cu_alloc *alloc);

/* What a process holds of memory that others made: how it ends is its owner's affair. */
void cu_import_end(struct cu_alloc *alloc);

/* Gives back what one allocation takes, off the books already; with the lock held. */
void cu_give_back(struct cu_alloc *alloc);

/* Gives everything of a context back; with the lock held. */
void cu_free_all(struct cu_ctx *ctx);

/* Gives back what was freed in stream order: what a synchronisation does; with the lock held. */
void cu_settle(struct cu_ctx *ctx);
void cu_pools_settle(CUdevice device);
void cu_pool_free(struct cu_alloc *alloc);
void cu_pool_free_later(struct cu_alloc *alloc, CUstream stream);
void cu_graph_freed(struct cu_alloc *alloc);

/* Ends what closed dma-bufs kept. Without the lock. */
void cu_dma_bufs_look(void);

/* An array over an object's memory, with a hold of its own. With the lock held. */
CUresult cu_array_over(CUcontext ctx, int number, void **out);

/* What an array or a multicast group held goes with it. With the lock held. */
void cu_bound_end(const void *owner);

/* True when [address, address + bytes) is device memory that is mapped (cuMemMap). */
bool cu_vmm_covers(uintptr_t address, size_t bytes);

#endif
