#include "capture.h"

#include <stdatomic.h>

enum { RELAXED = 2, NOTHING_TO_RESTORE = -1 };

void ap_capture_possible(struct ap_process *process)
{
    atomic_store_explicit(&process->captures, true, memory_order_relaxed);
}

/* A driver that cannot say so is older than captured allocations. An error is one that the call
 * on the stream gets as well: it is no capture of this stream. */
bool ap_capturing(struct ap_process *process, CUstream stream, bool per_thread)
{
    const struct real_cuda *real = real_cuda();
    int status = 0;
    if (!atomic_load_explicit(&process->captures, memory_order_relaxed))
        return false;
    CUresult (*ask)(CUstream, int *) =
        per_thread ? real->cuStreamIsCapturing_ptsz : real->cuStreamIsCapturing;
    return ask && ask(stream, &status) == CUDA_SUCCESS && status != 0;
}

int ap_capture_relax(struct ap_process *process)
{
    const struct real_cuda *real = real_cuda();
    int mode = RELAXED;
    if (!atomic_load_explicit(&process->captures, memory_order_relaxed) ||
        !real->cuThreadExchangeStreamCaptureMode ||
        real->cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
        return NOTHING_TO_RESTORE;
    return mode;
}

void ap_capture_restore(int mode)
{
    if (mode != NOTHING_TO_RESTORE)
        (void)real_cuda()->cuThreadExchangeStreamCaptureMode(&mode);
}

static void begins(void)
{
    struct ap_process *process = ap_process();
    if (process)
        ap_capture_possible(process);
}

/* Each marks that captures happen here, and is the driver's otherwise. */
#define BEGIN(name, parameters, arguments)                                                       \
    CUresult name parameters                                                                     \
    {                                                                                            \
        if (!real_cuda()->name)                                                                  \
            return CUDA_ERROR_NOT_FOUND;                                                         \
        begins();                                                                                \
        return real_cuda()->name arguments;                                                      \
    }

BEGIN(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph,
      (CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
       int mode),
      (stream, graph, after, edges, count, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz,
      (CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
       int mode),
      (stream, graph, after, edges, count, mode))
