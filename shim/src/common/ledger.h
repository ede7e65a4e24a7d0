/* One share's ledger as a process uses it. The layout is in apportion/ledger.h; why it can neither
 * stick nor count too little is argued at the head of ledger_sweep.c. */
#ifndef AP_LEDGER_H
#define AP_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "apportion/ledger.h"

#define AP_PATH_MAX 128

struct ap_ledger {
    struct apportion_ledger_header *head;
    struct apportion_ledger_slot *slots;
    _Atomic(struct apportion_ledger_slot *) mine; /* NULL until the first charge */
    _Atomic uint32_t mine_index;
    _Atomic uint64_t swept_ms;                    /* when this process last swept */
    _Atomic uint64_t lingering;                   /* bytes of the dead that it left counted then */
    uint64_t device, inode;                       /* of the mapped file */
    char path[AP_PATH_MAX];
};

/* Maps the ledger that is open as `fd`, checked, and remembers where it lies; takes no slot. 0, or
 * a negative error number: -EPROTO for a file that is no ledger of this version. */
int ap_ledger_open(struct ap_ledger *ledger, int fd, const char *path);

/* Takes a slot, once; the caller keeps other threads out. -ENOSPC: all are taken by the living. */
int ap_ledger_join(struct ap_ledger *ledger);

/* Charges `bytes` if the sum stays within `limit`. All of it or nothing. Needs a slot. */
bool ap_ledger_reserve(struct ap_ledger *ledger, uint64_t bytes, uint64_t limit);

/* Charges as much of `bytes` as fits and returns how much that was. Needs a slot. */
uint64_t ap_ledger_reserve_part(struct ap_ledger *ledger, uint64_t bytes, uint64_t limit);

/* Gives back up to `bytes` of what this process was charged here; returns how much. */
uint64_t ap_ledger_release(struct ap_ledger *ledger, uint64_t bytes);

/* Takes over what the dead left. Never waits for anybody; does what it can. Those whose memory the
 * driver has not freed yet stay counted, each for AP_LINGER_MS at most (ledger_dead.c). */
void ap_ledger_sweep(struct ap_ledger *ledger);
#define AP_LINGER_MS 500

/* Whether the driver says that process `pid` of this PID namespace has memory on the ledger's card.
 * False also where it does not tell. In the fronts (cuda/own.c, nvml/listed.c), and called where it
 * is there. */
__attribute__((weak, visibility("hidden"))) bool ap_driver_lists(const struct ap_ledger *ledger,
                                                                 uint32_t pid);

/* Charges `bytes`, which this process was charged, to a slot of their own that others can find by
 * `object` (not 0) and hold too. Returns its index, with the slot in *slot; or -ENOENT when this
 * process was not charged as much here, -ENOSPC when no slot is free. */
int ap_ledger_share(struct ap_ledger *ledger, uint64_t object, uint64_t bytes,
                    struct apportion_ledger_slot **slot);

/* Holds an object that others may hold; its bytes are charged once. -ENOENT: there is none. */
int ap_ledger_hold(struct ap_ledger *ledger, uint64_t object, struct apportion_ledger_slot **slot);

/* Nobody finds the object any more; those who hold it still do. */
void ap_ledger_retire(struct apportion_ledger_slot *slot);

/* Ends a hold; the last one gives the bytes back. */
void ap_ledger_let_go(struct ap_ledger *ledger, int index, struct apportion_ledger_slot *slot);

/* For ledger_join and ledger_shared: locks a free slot through `fd` (which the caller closes),
 * empties and maps it. Its index, or a negative error number. */
int ap_ledger_take_slot(struct ap_ledger *ledger, int fd, struct apportion_ledger_slot **slot);

/* Maps a slot anew: a lock taken through `fd` then lasts until it is unmapped. */
struct apportion_ledger_slot *ap_ledger_map_slot(int fd, uint32_t index);
void ap_ledger_unmap_slot(struct apportion_ledger_slot *slot);

/* Who a slot belonged to when nobody had its byte locked. */
struct ap_dead {
    uint64_t started;
    uint32_t pid;
};

enum ap_owner {
    AP_OWNER_LIVES,
    AP_OWNER_LINGERS, /* dead, with memory that the driver has not freed yet */
    AP_OWNER_GONE,    /* dead, or there never was one: *dead says whom that speaks of */
};

enum ap_owner ap_ledger_owner(const struct ap_ledger *ledger, int fd, uint32_t index,
                              struct ap_dead *dead);

/* Locks the byte of a slot whose owner is gone. 0, or -EAGAIN: another was faster. */
int ap_ledger_lock_dead(const struct ap_ledger *ledger, int fd, uint32_t index,
                        const struct ap_dead *dead);

/* For ledger_join and the sweep: empties a slot whose byte the caller has locked. */
void ap_ledger_reap(struct apportion_ledger_header *head, struct apportion_ledger_slot *slot);

/* Opens the file that `ledger` has mapped, anew; a negative error number when it is gone. */
int ap_ledger_reopen(const struct ap_ledger *ledger);

#endif
