/* Charging one linear allocation. What the driver takes was measured (driver 580, H200), and the
 * charge is the same to the byte:
 *
 *   more than 1 MiB   whole blocks of 2 MiB of its own: the size rounded up to 2 MiB.
 *   up to 1 MiB       carved out of shared 2 MiB blocks, in steps of 512 bytes; a block is taken
 *                     with its first piece and returned with its last. So 2 MiB are charged for
 *                     each 2 MiB block of addresses in which this process has a piece. While the
 *                     blocks it has seem to have room, the driver is asked first and a further
 *                     block is charged when the piece turns out to lie in one; if that does not
 *                     fit, the piece is freed again: for the moment of the call a process may
 *                     hold one block more than its share.
 *
 * A limit that is no multiple of 2 MiB is therefore usable down to the multiple below it.
 */
#ifndef AP_CUDA_CHARGE_H
#define AP_CUDA_CHARGE_H

#include "../common/process.h"
#include "front.h"

struct ap_ticket {
    struct ap_process *process;
    struct ap_gpu *gpu;
    uint64_t context;
    uint64_t bytes;    /* asked for */
    uint64_t reserved; /* charged so far */
    uint64_t unseen;   /* of it, what the driver's own accounts leave out */
    bool managed;
    bool small_locked;
    bool moving; /* ap_gpu_move_begins */
};

/* Kinds of records in the pointer table, by what goes back when one is dropped. */
enum ap_kind {
    AP_LARGE,       /* its bytes */
    AP_SMALL,       /* the blocks that are empty then */
    AP_SMALL_ARRAY, /* the same for arrays, which have blocks of their own */
    AP_HELD,        /* a hold that may be others' too: `bytes` is its number (hold.h) */
    AP_UNSIZED,     /* nothing yet: how much it is will be seen when it is mapped */
    AP_PART,        /* one reference to imported memory: `bytes` is its number in `handles` */
    AP_GIVEN,       /* as AP_HELD, where this process made it, and ends it for who would open it */
    AP_MANAGED = 0x100 /* beside another: the driver does not count it as the process's */
};

/* Fills in the current context and its GPU. Else the error to return: the driver's, or out of
 * memory where the GPU has no share. */
CUresult ap_charge_where(struct ap_ticket *ticket);

/* Reserves for `bytes` on the ticket's GPU. False: it is full, and that was counted. */
bool ap_charge_reserve(struct ap_ticket *ticket, uint64_t bytes);

/* Before the driver allocates on the current context's device: reserves. CUDA_SUCCESS: go on, and
 * settle or cancel. Else the error to return. */
CUresult ap_charge_begin(struct ap_ticket *ticket, uint64_t bytes);

/* After ap_charge_begin: it is managed memory, which the driver does not count as the process's. */
void ap_charge_managed(struct ap_ticket *ticket);

/* The driver gave `pointer`, and took `bytes`: adjusts the charge and remembers the pointer.
 * False: it does not fit after all; the charge is gone. The caller frees the memory, then calls
 * ap_charge_end_refused. */
bool ap_charge_settle(struct ap_ticket *ticket, CUdeviceptr pointer, uint64_t bytes);
void ap_charge_end_refused(struct ap_ticket *ticket);

/* The driver refused. */
void ap_charge_cancel(struct ap_ticket *ticket);

/* Notes the charge of something that is freed by `key`, and drops one that is there already. False:
 * no memory to remember it. */
bool ap_charge_remember(struct ap_ticket *ticket, const struct ap_record *record);

/* Charges an array that shares blocks with other small ones: whole blocks for the sum of all. */
bool ap_charge_small_array(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes);

/* Frees by the driver what was remembered by `key`, and gives its charge back. */
CUresult ap_charge_free(CUdeviceptr key, CUresult (*driver)(CUdeviceptr key));

/* Gives back the charge of a record taken from the pointer table. */
void ap_charge_drop(struct ap_process *process, const struct ap_record *record);

/* Gives back the charges of all that was allocated in a context that is no more. */
void ap_charge_drop_context(struct ap_process *process, uint64_t context);

#endif
