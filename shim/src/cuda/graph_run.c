/* Graphs are uploaded and launched: see graph.h for what that takes. */
#include <stdatomic.h>

#include "../common/account.h"
#include "device.h"
#include "follow.h"
#include "gate.h"
#include "graph.h"
#include "pool.h"

enum { GRAPH_RESERVED = 2 };

/* What is uploaded or launched, and by which call. */
struct run {
    struct ap_process *process;
    const struct ap_record *record;
    ap_graph_call call;
    void *argument;
};

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
    return ap_gpu_reserve(process, gpu, record->bytes);
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
 * must not go to another. *lacking: the GPU that has no room for it. */
static CUresult run_from(const struct run *run, CUdevice device, struct ap_gpu **lacking)
{
    const struct ap_record *record = run->record;
    uint64_t ahead;
    while (device < (CUdevice)AP_ORDINAL_MAX && !(record->context >> device & 1))
        device++;
    if (device == (CUdevice)AP_ORDINAL_MAX)
        return run->call(run->argument);
    struct ap_gpu *gpu = ap_gpu_of_device(run->process, device);
    if (!gpu)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct ap_graph_memory *memory = &run->process->graph_memory[device];
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    ap_lock(&memory->lock);
    if (prepare(run->process, device, gpu, record, &ahead)) {
        ap_gpu_move_begins(gpu);
        result = run_from(run, device + 1, lacking);
        settle(run->process, device, gpu, record, ahead, result);
        ap_gpu_move_ends(gpu);
    } else {
        *lacking = gpu;
    }
    ap_unlock(&memory->lock);
    return result;
}

CUresult ap_graph_run(struct ap_process *process, const struct ap_record *record,
                      ap_graph_call call, void *argument)
{
    const struct run all = {process, record, call, argument};
    struct ap_gpu *lacking = NULL;
    (void)ap_device_count(process);
    CUresult result = run_from(&all, 0, &lacking);
    if (lacking && ap_gpu_await_dead(process, lacking, record->bytes)) {
        lacking = NULL;
        result = run_from(&all, 0, &lacking);
    }
    if (lacking)
        ap_gpu_count_denied(lacking);
    return result;
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

/* It waits for its turn before anything is locked. */
static CUresult launch(CUresult (*driver)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream,
                       bool per_thread)
{
    struct ap_pass pass;
    if (!driver || !ap_gates_on())
        return run(driver, exec, stream);
    CUresult result = ap_gate_enter(&pass, ap_gate_graph_key(exec), stream, per_thread);
    if (result != CUDA_SUCCESS)
        return result;
    result = run(driver, exec, stream);
    ap_gate_leave(&pass, result);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return launch(real_cuda()->cuGraphLaunch, exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch(real_cuda()->cuGraphLaunch_ptsz, exec, stream, true);
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
