/* Virtual memory management: memory that is made (cuMemCreate), mapped, unmapped and let go of in
 * any order. It lives, and stays charged, until its handle's references and its mappings are all
 * gone: releasing the handle while it is mapped frees nothing (llama.cpp and PyTorch do that).
 *
 * One lock spans each of the driver's calls and what we note of it, so that neither a handle nor
 * an address can be given out again in between. Memory on the host is never charged or refused. */
#include "mem_vmm.h"

#include "../common/account.h"
#include "charge.h"
#include "device.h"

static uint64_t whole_blocks(uint64_t bytes)
{
    uint64_t padded;
    if (__builtin_add_overflow(bytes, AP_BLOCK - 1, &padded))
        return UINT64_MAX;
    return padded / AP_BLOCK * AP_BLOCK;
}

void ap_memory_let_go(struct ap_process *process, uint64_t handle)
{
    struct ap_record last;
    if (!ap_table_unref(&process->handles, handle, &last))
        return;
    ap_charge_drop(process, &last);
    ap_unbind_all(process, handle);
}

uint64_t ap_memory_at(CUdeviceptr pointer)
{
    const struct real_cuda *real = real_cuda();
    CUmemGenericAllocationHandle handle = 0;
    if (!real->cuMemRetainAllocationHandle || !real->cuMemRelease ||
        real->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)pointer) != CUDA_SUCCESS)
        return 0;
    (void)real->cuMemRelease(handle);
    return handle;
}

bool ap_memory_note(struct ap_process *process, const struct ap_record *record)
{
    struct ap_record old;
    bool had_old = false;
    bool noted = ap_table_put(&process->handles, record, &old, &had_old);
    if (had_old)
        ap_charge_drop(process, &old);
    return noted;
}

static bool note_handle(struct ap_process *process, const struct ap_record *record)
{
    ap_lock(&process->vmm_lock);
    bool noted = ap_memory_note(process, record);
    ap_unlock(&process->vmm_lock);
    return noted;
}

static CUresult create_charged(struct ap_process *process, CUmemGenericAllocationHandle *handle,
                               size_t bytes, const CUmemAllocationProp *properties,
                               unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    CUmemGenericAllocationHandle given = 0;
    uint64_t charge = whole_blocks(bytes);
    struct ap_gpu *gpu = process ? ap_gpu_of_device(process, properties->location.id) : NULL;
    if (!gpu)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!ap_gpu_reserve_patiently(process, gpu, charge)) {
        ap_gpu_count_denied(gpu);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ap_gpu_move_begins(gpu);
    CUresult result = real->cuMemCreate(&given, bytes, properties, flags);
    struct ap_record record = {
        .key = given, .bytes = charge, .count = 1, .gpu = (uint16_t)gpu->index};
    if (result == CUDA_SUCCESS && !note_handle(process, &record)) {
        (void)real->cuMemRelease(given);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        *handle = given;
    else
        ap_gpu_release(gpu, charge);
    ap_gpu_move_ends(gpu);
    return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    int count = 0;
    if (!real->cuMemCreate || !real->cuMemRelease)
        return CUDA_ERROR_NOT_FOUND;
    if (!handle || !properties || bytes == 0 ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return real->cuMemCreate(handle, bytes, properties, flags);
    /* A device that there is not: the driver's error, not ours. */
    if (!real->cuDeviceGetCount || real->cuDeviceGetCount(&count) != CUDA_SUCCESS ||
        properties->location.id < 0 || properties->location.id >= count)
        return real->cuMemCreate(handle, bytes, properties, flags);
    return create_charged(ap_process(), handle, bytes, properties, flags);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemRelease)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return real->cuMemRelease(handle);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuMemRelease(handle);
    if (result == CUDA_SUCCESS)
        ap_memory_let_go(process, handle);
    ap_unlock(&process->vmm_lock);
    return result;
}

/* If a mapping cannot be remembered, its reference stays: charged too long, never too short. */
static void note_mapping(struct ap_process *process, CUdeviceptr pointer, size_t bytes,
                         CUmemGenericAllocationHandle handle)
{
    struct ap_record record = {.key = pointer, .bytes = bytes, .context = handle}, old;
    bool had_old = false;
    if (!ap_table_ref_known(&process->handles, handle))
        return;
    if (ap_table_put(&process->mappings, &record, &old, &had_old) && had_old)
        ap_memory_let_go(process, old.context);
}

/* Of imported memory whose size nobody told, the first mapping tells it: only the whole can be
 * mapped (measured). False: it does not fit. */
static bool charge_mapped(struct ap_process *process, uint64_t handle, size_t bytes)
{
    struct ap_record record, old;
    bool had_old;
    if (!ap_table_get(&process->handles, handle, &record) || record.kind != AP_UNSIZED)
        return true;
    record.bytes = whole_blocks(bytes);
    record.kind = AP_LARGE;
    if (ap_gpu_reserve(process, &process->gpus[record.gpu], record.bytes))
        return ap_table_put(&process->handles, &record, &old, &had_old);
    ap_gpu_count_denied(&process->gpus[record.gpu]);
    return false;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemMap || !real->cuMemUnmap)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return real->cuMemMap(pointer, bytes, offset, handle, flags);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuMemMap(pointer, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS && !charge_mapped(process, handle, bytes)) {
        (void)real->cuMemUnmap(pointer, bytes);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        note_mapping(process, pointer, bytes, handle);
    ap_unlock(&process->vmm_lock);
    return result;
}

/* One call may unmap several mappings that lie side by side, ours and imported ones. */
static void forget_mappings(struct ap_process *process, CUdeviceptr pointer, size_t bytes)
{
    uint64_t at = pointer, end = pointer + bytes;
    while (at < end) {
        struct ap_record mapping;
        bool known = ap_table_take(&process->mappings, at, &mapping);
        if (known)
            ap_memory_let_go(process, mapping.context);
        at += known && mapping.bytes ? mapping.bytes : AP_BLOCK;
    }
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemUnmap)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return real->cuMemUnmap(pointer, bytes);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuMemUnmap(pointer, bytes);
    if (result == CUDA_SUCCESS)
        forget_mappings(process, pointer, bytes);
    ap_unlock(&process->vmm_lock);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemRetainAllocationHandle)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !handle)
        return real->cuMemRetainAllocationHandle(handle, address);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuMemRetainAllocationHandle(handle, address);
    if (result == CUDA_SUCCESS)
        (void)ap_table_ref_known(&process->handles, *handle);
    ap_unlock(&process->vmm_lock);
    return result;
}
