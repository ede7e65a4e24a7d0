/* Graphs are uploaded and launched: see graph.h for what that takes. */
#include <stdatomic.h>

#include "../common/account.h"
#include "device.h"
#include "follow.h"
#include "graph.h"
#include "pool.h"

enum { GRAPH_RESERVED = 2 };

static bool ask(CUdevice device, uint64_t *bytes)
{
    const struct real_cuda *real = real_cuda();
    return real->cuDeviceGetGraphMemAttribute &&
           real->cuDeviceGetGraphMemAttribute(device, GRAPH_RESERVED, bytes) == CUDA_SUCCESS;
}

/* With the lock. Less than was charged means that some graph has lost its memory. */
static void look(struct ap_process *process, CUdevice device, struct ap_gpu *gpu)
{
    struct ap_graph_memory *memory = &process->graph_memory[device];
    uint64_t reserved;
    if (!ask(device, &reserved))
        return;
    if (reserved < atomic_load_explicit(&memory->charged, memory_order_relaxed))
        memory->backed = 0;
    ap_follow_taken(process, gpu, &memory->charged, 0, reserved);
}

static void trim(struct ap_process *process, CUdevice device, struct ap_gpu *gpu)
{
    const struct real_cuda *real = real_cuda();
    if (real->cuDeviceGraphMemTrim)
        (void)real->cuDeviceGraphMemTrim(device);
    process->graph_memory[device].backed = 0;
    look(process, device, gpu);
}

static bool prepare(struct ap_process *process, CUdevice device, struct ap_gpu *gpu,
                    const struct ap_record *record, uint64_t *ahead)
{
    *ahead = 0;
    if (record->key && process->graph_memory[device].backed == record->key)
        return true;
    *ahead = record->bytes;
    if (ap_gpu_reserve(process, gpu, record->bytes))
        return true;
    trim(process, device, gpu);
    if (ap_gpu_reserve(process, gpu, record->bytes))
        return true;
    ap_gpu_count_denied(gpu);
    return false;
}

static void settle(struct ap_process *process, CUdevice device, struct ap_gpu *gpu,
                   const struct ap_record *record, uint64_t ahead, CUresult result)
{
    struct ap_graph_memory *memory = &process->graph_memory[device];
    uint64_t charged = atomic_load_explicit(&memory->charged, memory_order_relaxed), reserved;
    if (!ask(device, &reserved))
        reserved = charged + (result == CUDA_SUCCESS ? ahead : 0);
    /* A launch that the driver refused may leave all behind that it could get (measured). */
    if (result != CUDA_SUCCESS && reserved > charged) {
        if (real_cuda()->cuDeviceGraphMemTrim)
            (void)real_cuda()->cuDeviceGraphMemTrim(device);
        (void)ask(device, &reserved);
    }
    ap_follow_taken(process, gpu, &memory->charged, ahead, reserved);
    memory->backed = result == CUDA_SUCCESS ? record->key : 0;
}

/* One device after the other, each locked until the driver is through: what one graph was promised
 * must not go to another. */
static CUresult run_from(struct ap_process *process, const struct ap_record *record,
                         CUdevice device, ap_graph_call call, void *argument)
{
    uint64_t ahead;
    while (device < (CUdevice)AP_ORDINAL_MAX && !(record->context >> device & 1))
        device++;
    if (device == (CUdevice)AP_ORDINAL_MAX)
        return call(argument);
    struct ap_gpu *gpu = ap_gpu_of_device(process, device);
    if (!gpu)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct ap_graph_memory *memory = &process->graph_memory[device];
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    ap_lock(&memory->lock);
    if (prepare(process, device, gpu, record, &ahead)) {
        ap_gpu_move_begins(gpu);
        result = run_from(process, record, device + 1, call, argument);
        settle(process, device, gpu, record, ahead, result);
        ap_gpu_move_ends(gpu);
    }
    ap_unlock(&memory->lock);
    return result;
}

CUresult ap_graph_run(struct ap_process *process, const struct ap_record *record,
                      ap_graph_call call, void *argument)
{
    (void)ap_device_count(process);
    return run_from(process, record, 0, call, argument);
}

struct order {
    CUresult (*driver)(CUgraphExec, CUstream);
    CUgraphExec exec;
    CUstream stream;
};

static CUresult drive(void *argument)
{
    const struct order *order = argument;
    return order->driver(order->exec, order->stream);
}

static CUresult run(CUresult (*driver)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream)
{
    struct ap_process *process = ap_process();
    struct ap_record record;
    if (!driver)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || atomic_load_explicit(&process->graph_count, memory_order_relaxed) == 0 ||
        !ap_table_get(&process->graphs, (uint64_t)(uintptr_t)exec, &record))
        return driver(exec, stream);
    struct order order = {driver, exec, stream};
    return ap_graph_run(process, &record, drive, &order);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return run(real_cuda()->cuGraphUpload, exec, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return run(real_cuda()->cuGraphUpload_ptsz, exec, stream);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return run(real_cuda()->cuGraphLaunch, exec, stream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return run(real_cuda()->cuGraphLaunch_ptsz, exec, stream);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuDeviceGraphMemTrim)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuDeviceGraphMemTrim(device);
    if (result != CUDA_SUCCESS || !process || device < 0 || device >= (CUdevice)AP_ORDINAL_MAX)
        return result;
    struct ap_gpu *gpu = ap_gpu_of_device(process, device);
    struct ap_graph_memory *memory = &process->graph_memory[device];
    ap_lock(&memory->lock);
    memory->backed = 0;
    if (gpu)
        look(process, device, gpu);
    ap_unlock(&memory->lock);
    return result;
}

static bool has_any(const struct ap_graph_memory *memory)
{
    return atomic_load_explicit(&memory->charged, memory_order_relaxed) > 0;
}

void ap_graphs_look(struct ap_process *process)
{
    int count = atomic_load_explicit(&process->device_count, memory_order_relaxed);
    for (CUdevice device = 0; device < count && device < (CUdevice)AP_ORDINAL_MAX; device++) {
        struct ap_graph_memory *memory = &process->graph_memory[device];
        struct ap_gpu *gpu = has_any(memory) ? ap_gpu_of_device(process, device) : NULL;
        if (!gpu || !ap_try_lock(&memory->lock))
            continue;
        look(process, device, gpu);
        ap_unlock(&memory->lock);
    }
}

bool ap_graphs_reclaim(struct ap_process *process, struct ap_gpu *gpu)
{
    int count = ap_device_count(process);
    bool helped = false;
    for (CUdevice device = 0; device < count && device < (CUdevice)AP_ORDINAL_MAX; device++) {
        struct ap_graph_memory *memory = &process->graph_memory[device];
        uint64_t before = atomic_load_explicit(&memory->charged, memory_order_relaxed);
        if (before == 0 || ap_gpu_of_device(process, device) != gpu || !ap_try_lock(&memory->lock))
            continue;
        trim(process, device, gpu);
        helped |= atomic_load_explicit(&memory->charged, memory_order_relaxed) < before;
        ap_unlock(&memory->lock);
    }
    return helped;
}
