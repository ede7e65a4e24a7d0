/* The ledger: what all processes of a share have been charged. THE layout; the plugin mirrors it.
 *
 * One file per share (APPORTION_LEDGER_SIZE bytes, preallocated and zeroed by the plugin except for
 * the header's first five fields and context_mib), mapped by every process of the share in whatever
 * container.
 * Integers are little endian. Fields are only ever touched by atomic operations.
 *
 * Who is alive is known by the kernel, not by PIDs (PID namespaces differ): the owner of slot i
 * holds a write lock (F_OFD_SETLK) on byte APPORTION_LEDGER_LOCK_SLOTS + i of the ledger, through
 * an open file description that lives exactly as long as the owner's mapping. The bytes lie
 * beyond the end of the file; nothing is stored there.
 *
 * Memory that one process gives to others (IPC, exported handles) has a slot of its own while any
 * of them holds it: `pid` 0, `object` not 0, its byte under a read lock of each holder instead of
 * one write lock. Its `used` is written only under the write lock, by who makes or reaps it.
 *
 * How to read it from outside (the plugin, `apportion status`):
 *   - `total` is what new allocations are measured against. It is never too small; after the death
 *     of a process it is too large until the next one of the share sweeps.
 *   - what is really held now: sum of `used` over the slots whose byte is locked, for reading
 *     or writing (F_OFD_GETLK asked for a write lock).
 *   - a reader takes no lock and writes nothing.
 */
#ifndef APPORTION_LEDGER_H
#define APPORTION_LEDGER_H

#include <stddef.h>
#include <stdint.h>

#define APPORTION_LEDGER_MAGIC UINT64_C(0x314744454c505041) /* the bytes "APPLEDG1" */
#define APPORTION_LEDGER_VERSION 1u
#define APPORTION_LEDGER_HEADER_SIZE 64u
#define APPORTION_LEDGER_CORES_OFFSET 64u
#define APPORTION_LEDGER_SLOT_SIZE 64u
#define APPORTION_LEDGER_SLOT_COUNT 1024u
#define APPORTION_LEDGER_SLOTS_OFFSET 4096u
#define APPORTION_LEDGER_SIZE \
    (APPORTION_LEDGER_SLOTS_OFFSET + APPORTION_LEDGER_SLOT_COUNT * APPORTION_LEDGER_SLOT_SIZE)

/* Byte that the one process which recounts `total` locks, and the first slot's byte. */
#define APPORTION_LEDGER_LOCK_SWEEP 0x3fffffff
#define APPORTION_LEDGER_LOCK_SLOTS 0x40000000

/* `seq` of a slot: operations in flight (low bits) and operations ever begun (the rest). It is
 * never set back, also when a slot changes hands, so an unchanged value means untouched. */
#define APPORTION_LEDGER_SEQ_BUSY_BITS 16u
#define APPORTION_LEDGER_SEQ_BUSY_MASK UINT64_C(0xffff)
#define APPORTION_LEDGER_SEQ_BEGIN UINT64_C(0x10001)

struct apportion_ledger_header {
    uint64_t magic;            /* APPORTION_LEDGER_MAGIC */
    uint32_t version;          /* APPORTION_LEDGER_VERSION */
    uint32_t header_size;      /* APPORTION_LEDGER_HEADER_SIZE */
    uint32_t slot_size;        /* APPORTION_LEDGER_SLOT_SIZE */
    uint32_t slot_count;       /* APPORTION_LEDGER_SLOT_COUNT */
    _Atomic uint64_t total;    /* bytes charged; never less than the live processes' sum */
    _Atomic uint64_t denied;   /* allocations refused since the share was made */
    _Atomic uint64_t peak;     /* highest `total` that an allocation led to */
    _Atomic uint32_t dirty;    /* dead slots taken over: how many were begun */
    _Atomic uint32_t clean;    /* value of `dirty` that the last good recount covers */
    _Atomic uint32_t top;      /* slots [top, slot_count) were never used */
    _Atomic uint32_t context_mib; /* what a context takes here, MiB rounded up; 0: not known yet */
};

struct apportion_ledger_slot {
    _Atomic uint64_t seq;      /* see APPORTION_LEDGER_SEQ_* */
    _Atomic uint64_t used;     /* bytes charged by the slot's owner */
    _Atomic uint32_t pid;      /* as the owner sees itself (not a sign of life); 0: never used */
    uint32_t reserved0;        /* zero */
    _Atomic uint64_t started;  /* CLOCK_BOOTTIME of the claim, nanoseconds; informative only */
    _Atomic uint64_t namespace; /* inode of the owner's PID namespace, in which `pid` counts; 0: not
                                * known */
    _Atomic uint64_t died;     /* CLOCK_BOOTTIME, nanoseconds, when a peer found the owner dead
                                * while the driver still had its memory; 0: nobody did */
    _Atomic uint64_t busy_until_ns; /* CLOCK_MONOTONIC by which what the owner has queued on the GPU
                                     * will be done, as it thinks; 0: nothing, ever */
    _Atomic uint64_t object;   /* 0: a process's slot. Else what the slot's bytes are charged for:
                                * one piece of memory that several processes may hold */
};

/* Time on the GPU, at APPORTION_LEDGER_CORES_OFFSET; all zero in a new ledger and where cores are
 * not limited by time. */
struct apportion_ledger_cores {
    _Atomic uint64_t used_ns;    /* GPU time that the share's work took, as well as it is known */
    _Atomic uint64_t waited_ns;  /* time that launches were held back, summed over threads */
    _Atomic uint64_t overrun_ns; /* of used_ns: outside the share's slots */
    _Atomic uint64_t wanted_ns;  /* CLOCK_MONOTONIC of the last launch or wait; 0: none yet */
    _Atomic int64_t carry_ns;    /* what the share was given too little (above 0) or has run too
                                  * much and pays back; bounded by the front */
    _Atomic uint64_t given_until_ns; /* CLOCK_MONOTONIC up to which carry_ns has what the share was
                                      * given too little: each moment counts once */
    _Atomic uint64_t taken_until_ns; /* and what it has run too much */
    uint64_t reserved;           /* zero */
};

_Static_assert(sizeof(struct apportion_ledger_cores) == 64, "cores");
_Static_assert(offsetof(struct apportion_ledger_slot, object) == 56, "slot's object");
_Static_assert(sizeof(struct apportion_ledger_header) == APPORTION_LEDGER_HEADER_SIZE, "header");
_Static_assert(sizeof(struct apportion_ledger_slot) == APPORTION_LEDGER_SLOT_SIZE, "slot");
_Static_assert(offsetof(struct apportion_ledger_header, total) == 24, "total");
_Static_assert(APPORTION_LEDGER_SIZE == 69632, "file size");

#endif
