/* The charge for what a process holds on a GPU beyond its allocations: contexts, code, stacks,
 * heaps, streams. It is settled to the driver's word:
 *
 *     overhead = what the driver says that this process holds - what its allocations are charged
 *
 * and lies in the process's slot like any other charge. When it grows although the share is full,
 * it is charged over the limit, and everything after is refused. Where the driver does not tell
 * (an older one, or one that lists another namespace's processes), estimates stay.
 *
 * A thread in the middle of an allocation or a release makes the charge and the driver's word
 * disagree for as long as the driver takes. So a reading counts as quiet only if the process began
 * no charge or release meanwhile and no thread is in such a call. The overhead is raised by a quiet
 * reading and lowered by two in a row, to the higher one; without them it is raised by less than
 * was read, and lowered by no more than what is known to have gone. */
#ifndef AP_CUDA_TRUTH_H
#define AP_CUDA_TRUTH_H

#include "../common/account.h"
#include "front.h"

#define AP_TRUTH_ROUTINE_MS 100

/* Settles if that was last done this long ago, and no other thread is at it. */
void ap_truth_refresh(struct ap_process *process, struct ap_gpu *gpu, uint64_t every_ms);

/* The same on every GPU. */
void ap_truth_all_refresh(struct ap_process *process, uint64_t every_ms);

/* Settles at once, on every GPU where this process has a context. */
void ap_truth_all_changed(void);

/* A call in which the driver takes some memory by itself. */
struct ap_growth {
    struct ap_process *process;
    struct ap_gpu *gpu;
    uint64_t expected; /* reserved for it */
    uint64_t before;   /* overhead when it began */
    uint64_t took;     /* by the driver's word, else `expected` */
    bool told;         /* by the driver's word */
    bool context;      /* a context begins */
};

/* Before the call: reserves what it is expected to take, 0 if that is not known. CUDA_SUCCESS: go
 * on, and settle or cancel. Else the error to return. */
CUresult ap_growth_begin(struct ap_growth *growth, struct ap_process *process, struct ap_gpu *gpu,
                         uint64_t expected);
/* The same for a context, by what contexts took before. */
CUresult ap_growth_begin_context(struct ap_growth *growth, struct ap_process *process,
                                 struct ap_gpu *gpu);

/* After that: reserves for what else it is expected to take. CUDA_SUCCESS, or the error to return,
 * after which the growth is over. */
CUresult ap_growth_expect(struct ap_growth *growth, uint64_t bytes);

/* The driver refused. */
void ap_growth_cancel(struct ap_growth *growth);

/* The driver did it. False: it took more than the share has left; the caller undoes it, then calls
 * ap_growth_undone and returns CUDA_ERROR_OUT_OF_MEMORY. */
bool ap_growth_settle(struct ap_growth *growth);
void ap_growth_undone(struct ap_growth *growth);

/* The driver gave back something that was charged `bytes`, if that is known. */
void ap_truth_shrunk(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes);

/* A context ended that was charged `bytes`; its allocations' charges are gone. */
void ap_truth_context_ended(struct ap_process *process, struct ap_gpu *gpu, uint64_t context,
                            uint64_t bytes);

/* The device heap of a context may grow by `bytes` at any launch: they are charged at once, in
 * place of what was promised to the context before, until the driver is seen to have taken them.
 * False: they do not fit; nothing changed. `before` gets the former promise. */
bool ap_truth_promise(struct ap_process *process, struct ap_gpu *gpu, uint64_t context,
                      uint64_t bytes, uint64_t *before);

#endif
