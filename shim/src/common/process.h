/* What one process knows: its GPUs and their shares, and what it has allocated. It lies in memory
 * that a fork wipes, so a child (by fork or a bare clone) starts from nothing: it owns no slot,
 * no charge and no pointer, and its locks are free whatever the parent's threads held. */
#ifndef AP_PROCESS_H
#define AP_PROCESS_H

#include <stdatomic.h>

#include "apportion/limits.h"
#include "apportion/schedule.h"
#include "ledger.h"
#include "lock.h"
#include "table.h"

#define AP_SHARE_MAX 64u        /* shares in one container */
#define AP_GPU_MAX 64u          /* GPUs in one container */
#define AP_POOL_MAX 1024u       /* memory pools that exist at once */
#define AP_DEFERRED_MAX 1024u   /* allocations freed in stream order that are remembered */
#define AP_ORDINAL_MAX 64u      /* CUDA ordinals whose GPU is remembered */

struct ap_share {
    struct apportion_limits limits;
    struct ap_ledger ledger;
    const struct apportion_schedule *schedule; /* NULL: its cores are not limited by time */
};

/* What is charged for a GPU beyond the allocations: contexts, code, heaps (cuda/truth.h). */
struct ap_overhead {
    struct ap_lock lock;        /* held while the driver is asked and the charge adapted */
    _Atomic uint64_t bytes;     /* charged: as the driver said last, and `promised` */
    _Atomic uint64_t promised;  /* allowed, but not taken yet: device heaps that are not used yet */
    _Atomic uint64_t growing;   /* reserved for calls in flight, in which the driver takes some */
    _Atomic uint64_t unseen;    /* charged allocations that the driver does not count: managed */
    _Atomic uint64_t asked_ms;  /* when the driver was last asked */
    _Atomic uint32_t contexts;  /* that are alive */
    bool asked;                 /* ever */
    atomic_bool distrusted;     /* the driver speaks of another process as this one */
    void *nvml;                 /* its handle of the card; NULL: not looked up yet */
};

struct ap_gpu {
    uint8_t uuid[16];
    uint32_t index;             /* of this record in ap_process.gpus */
    uint32_t share_count;
    struct ap_share *shares[AP_SHARE_MAX];
    struct ap_table blocks;     /* blocks of memory that small allocations lie in, by reference */
    struct ap_lock small_lock;  /* held while a small allocation is placed */
    _Atomic uint64_t held_bytes; /* held with other processes: hold.c */
    struct ap_lock array_lock;
    uint64_t array_bytes;       /* in small arrays, which share blocks */
    _Atomic uint64_t small;     /* blocks that hold small pieces, and what is in them: charge.c */
    struct ap_overhead overhead;
    _Atomic(struct ap_gate *) gate; /* of its launches, cuda/gate_state.h; NULL: none yet */
    _Atomic uint32_t moving;    /* calls in which the driver gives or takes what is charged here */
};

#define AP_LISTED_MAX 4096u     /* processes of one card */

/* The driver's management library, as far as it tells what this process holds. */
struct ap_own {
    struct ap_lock lock;
    enum { AP_OWN_UNTRIED, AP_OWN_READY, AP_OWN_NONE } state;
    unsigned char list[AP_LISTED_MAX * 24];
};

/* A device's primary context; the lock spans the calls that begin and end it. */
struct ap_primary {
    struct ap_lock lock;
    struct ap_gpu *gpu; /* charged; NULL: the context is not there */
    uint64_t context;   /* as the driver gave it */
    uint64_t cost;      /* charged for it */
};

/* A memory pool of the driver's; see src/cuda/pool.h. */
struct ap_pool {
    _Atomic uint64_t handle;    /* 0: no pool */
    struct ap_lock lock;        /* for all below, with the driver's calls that change the pool */
    uint16_t kind;
    bool ended;                 /* destroyed by the application while memory of it was in use */
    struct ap_gpu *gpu;         /* NULL: its device has no valid share here */
    _Atomic uint64_t charged;   /* bytes: what the driver had reserved when it was last asked */
    uint64_t in_use;            /* bytes, at most, of that */
};

/* Linear memory that was freed in stream order; see src/cuda/deferred.h. */
struct ap_deferred {
    struct ap_record record;
    uint64_t context, stream;   /* of the release */
    uint64_t event;             /* that follows it in the stream */
};

/* What the graphs of a device have taken; see src/cuda/graph.h. */
struct ap_graph_memory {
    struct ap_lock lock;        /* for all below, with the driver's calls that change it */
    _Atomic uint64_t charged;   /* bytes: as for a pool */
    uint64_t backed;            /* the executable graph that needs no more than it has; 0: none */
};

struct ap_process {
    struct ap_lock lock;        /* for what follows, up to the tables */
    bool shares_read;           /* all that are there: common/shares.h */
    uint32_t share_count;
    struct ap_share shares[AP_SHARE_MAX];
    struct ap_lock start_lock;  /* spans a cuInit that makes this process a client of MPS */
    _Atomic uint32_t gpu_count;
    struct ap_gpu gpus[AP_GPU_MAX];
    _Atomic(struct ap_gpu *) by_ordinal[AP_ORDINAL_MAX];
    struct ap_primary primary[AP_ORDINAL_MAX];
    _Atomic uint64_t contexts_ended;
    struct ap_table contexts;   /* that are not primary, see cuda/context.c and cuda/green.c */
    struct ap_table promises;   /* of device heap, by context */
    struct ap_table loaded;     /* code that was loaded in a context already: cuda/library.c */
    struct ap_table libraries;  /* whose variables come with their first use: cuda/use.h */
    struct ap_table brought;    /* those that have come, by library and context */
    _Atomic uint32_t library_count; /* that were ever put into `libraries` */
    _Atomic uint64_t unloads;   /* how often code went: what `loaded` says from before is void */
    struct ap_own own;
    struct ap_table pointers;
    struct ap_lock vmm_lock;    /* for the two tables below, with the driver's call */
    struct ap_table handles;    /* memory without address, by handle */
    struct ap_table mappings;   /* where it is mapped, by address; `context` is the handle */

    struct ap_lock import_lock; /* spans the calls that open, close and give out IPC handles */
    struct ap_lock hold_lock;
    struct ap_table holds;      /* what is held with other processes: hold.c */
    struct ap_table descriptors; /* of memory that was given out as one: descriptor.c */
    char device_path[64];       /* of the driver's descriptors; "" before the first */
    struct ap_table bound;      /* memory that arrays and multicast objects hold: bound.c */
    struct ap_table externals;  /* imported memory, by the driver's handle: external.c */
    _Atomic uint64_t externals_made;

    struct ap_lock pool_lock;   /* for new entries in `pools`, and a device's current pool */
    _Atomic uint32_t pool_count; /* places of `pools` that were ever in use */
    struct ap_pool pools[AP_POOL_MAX];
    _Atomic uint64_t current_pool[AP_ORDINAL_MAX]; /* handle; 0: the driver is to be asked */
    _Atomic int device_count;   /* 0: not asked yet */
    struct ap_lock deferred_lock;
    _Atomic uint32_t deferred_count;
    struct ap_deferred deferred[AP_DEFERRED_MAX];
    atomic_bool captures;       /* a stream may be capturing */
    struct ap_graph_memory graph_memory[AP_ORDINAL_MAX];
    struct ap_table graphs;     /* executable graphs that take memory, by handle */
    _Atomic uint32_t graph_count;
    struct ap_lock gate_look;   /* held while events of gates are asked about, or ended */
    /* Gives back what this process has in reserve on a GPU; true: that may have helped. */
    _Atomic(bool (*)(struct ap_process *, struct ap_gpu *)) reclaim;
};

/* This process's state; NULL when there is no memory for it. */
struct ap_process *ap_process(void);

/* The GPU's record if it has a valid share in this container, else NULL. */
struct ap_gpu *ap_gpu_find(struct ap_process *process, const uint8_t uuid[16]);

#endif
