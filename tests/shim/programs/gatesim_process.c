/* What the gate finds around it: a process with one GPU and one share, the driver's calls, and the
 * rest of the library as far as the gate calls it. */
#include <stdlib.h>

#include "../../../shim/src/common/account.h"
#include "../../../shim/src/common/shares.h"
#include "../../../shim/src/common/sys.h"
#include "capture.h"
#include "device.h"
#include "gatesim.h"
#include "truth.h"

enum { NOT_READY = 600, ENDS = 256 };

struct CUevent_st {
    CUcontext context;
    unsigned queue, ends; /* how many contexts had ended when it was made */
    uint64_t work;
};

CUcontext context_now;
static CUcontext ended[ENDS];
static unsigned ends;

void context_end(CUcontext context)
{
    ended[ends++ % ENDS] = context;
}

static void touch(const struct CUevent_st *event)
{
    for (unsigned i = event->ends; i < ends; i++)
        if (ended[i % ENDS] == event->context)
            abort();
}

/* 0: it was not. */
static uint64_t reached(const struct CUevent_st *event)
{
    touch(event);
    return gpu_done_at(event->queue, event->work);
}

struct real_cuda ap_real_cuda;
atomic_bool ap_real_cuda_ready;

static CUresult create(CUevent *event, unsigned int flags)
{
    (void)flags;
    sim_pass(1000);
    *event = calloc(1, sizeof **event);
    (*event)->context = context_now ? context_now : (CUcontext)sim_tenant();
    (*event)->ends = ends;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUevent event)
{
    touch(event);
    free(event);
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    (void)stream;
    touch(event);
    sim_pass(1500);
    event->queue = sim_tenant()->queue;
    gpu_submit_event(event->queue);
    event->work = gpu_submitted(event->queue);
    return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    sim_pass(500);
    return reached(event) ? CUDA_SUCCESS : NOT_READY;
}

static CUresult elapsed(float *milliseconds, CUevent from, CUevent to)
{
    uint64_t first = reached(from), last = reached(to);
    sim_pass(500);
    if (!first || !last)
        return NOT_READY;
    *milliseconds = (float)(((double)last - (double)first) * 1e-6);
    return CUDA_SUCCESS;
}

/* Work of a process is one queue, whatever the stream. */
static CUresult create_stream(CUstream *stream, unsigned int flags)
{
    (void)flags;
    sim_pass(5000);
    *stream = (CUstream)sim_tenant();
    return CUDA_SUCCESS;
}

static CUresult current(CUcontext *context)
{
    *context = context_now ? context_now : (CUcontext)sim_tenant();
    return CUDA_SUCCESS;
}

void ap_real_cuda_fill(void)
{
    ap_real_cuda = (struct real_cuda){.cuEventCreate = create,
                                      .cuEventDestroy_v2 = destroy,
                                      .cuEventRecord = record,
                                      .cuEventQuery = query,
                                      .cuEventElapsedTime = elapsed,
                                      .cuStreamCreate = create_stream,
                                      .cuCtxGetCurrent = current};
    atomic_store(&ap_real_cuda_ready, true);
}

void process_make(struct tenant *tenant, unsigned slot)
{
    struct ap_process *process = calloc(1, sizeof *process);
    struct ap_share *share = &process->shares[0];
    struct ap_gpu *gpu = &process->gpus[0];
    share->schedule = &tenant->files->schedule;
    share->ledger.head = &tenant->files->ledger.header;
    share->ledger.slots = tenant->files->ledger.slots;
    atomic_store(&share->ledger.mine, &share->ledger.slots[slot]);
    atomic_store(&share->ledger.mine_index, slot);
    if (atomic_load(&share->ledger.head->top) <= slot)
        atomic_store(&share->ledger.head->top, slot + 1);
    gpu->share_count = 1;
    gpu->shares[0] = share;
    process->share_count = 1;
    atomic_store(&process->gpu_count, 1);
    tenant->process = process;
}

struct ap_process *ap_process(void)
{
    return sim_tenant()->process;
}

uint64_t ap_now_ns(void)
{
    sim_pass(CLOCK_NS);
    return sim_now();
}

void ap_sleep_until(uint64_t when)
{
    sim_sleep_until(when + LATE_NS + sim_random(LATE_NS));
}

void *ap_map_private(size_t size)
{
    return calloc(1, size);
}

const void *ap_map_to_read(int fd, size_t size)
{
    (void)fd, (void)size;
    return NULL;
}

void ap_unmap(void *address, size_t size)
{
    (void)size;
    free(address);
}

int ap_fstat(int fd, struct stat *out)
{
    (void)fd, (void)out;
    return -1;
}

void ap_futex_wait(void *word, uint32_t expected)
{
    (void)word, (void)expected;
    sim_pass(1000);
}

void ap_futex_wake_one(void *word)
{
    (void)word;
}

void ap_nap(long nanoseconds)
{
    sim_pass((uint64_t)nanoseconds);
}

bool ap_gpu_reserve(struct ap_process *process, struct ap_gpu *gpu, uint64_t bytes)
{
    (void)process, (void)gpu, (void)bytes;
    return true;
}

void ap_truth_refresh(struct ap_process *process, struct ap_gpu *gpu, uint64_t every_ms)
{
    (void)process, (void)gpu, (void)every_ms;
}

int ap_shares_scan(struct ap_process *process, const char *folder)
{
    (void)process, (void)folder;
    return 0;
}

bool ap_capturing(struct ap_process *process, CUstream stream, bool per_thread)
{
    (void)process, (void)stream, (void)per_thread;
    return false;
}

int ap_capture_relax(struct ap_process *process)
{
    (void)process;
    return 0;
}

void ap_capture_restore(int mode)
{
    (void)mode;
}

struct ap_gpu *ap_gpu_of_device(struct ap_process *process, CUdevice device)
{
    (void)device;
    return &process->gpus[0];
}
