/* Virtual memory management: memory that is made (cuMemCreate), mapped, unmapped and let go of in
 * any order. It lives, and stays charged, until its handle's references and its mappings are all
 * gone: releasing the handle while it is mapped frees nothing (llama.cpp and PyTorch do that).
 *
 * One lock spans each of the driver's calls and what we note of it, so that neither a handle nor
 * an address can be given out again in between. Memory on the host is never charged or refused.
 * Memory imported from elsewhere is not charged here (its maker was). */
#include "../common/account.h"
#include "device.h"

static uint64_t whole_blocks(uint64_t bytes)
{
    uint64_t padded;
    if (__builtin_add_overflow(bytes, AP_BLOCK - 1, &padded))
        return UINT64_MAX;
    return padded / AP_BLOCK * AP_BLOCK;
}

static void let_go(struct ap_process *process, CUmemGenericAllocationHandle handle)
{
    struct ap_record last;
    if (ap_table_unref(&process->handles, handle, &last))
        ap_gpu_release(&process->gpus[last.gpu], last.bytes);
}

/* The driver made `handle`; false: no memory to remember it. */
static bool note_handle(struct ap_process *process, const struct ap_record *record)
{
    struct ap_record old;
    bool had_old = false;
    ap_lock(&process->vmm_lock);
    bool noted = ap_table_put(&process->handles, record, &old, &had_old);
    ap_unlock(&process->vmm_lock);
    if (had_old)
        ap_gpu_release(&process->gpus[old.gpu], old.bytes);
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
    if (!ap_gpu_reserve(process, gpu, charge)) {
        ap_gpu_count_denied(gpu);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
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
        let_go(process, handle);
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
        let_go(process, old.context);
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemMap)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return real->cuMemMap(pointer, bytes, offset, handle, flags);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuMemMap(pointer, bytes, offset, handle, flags);
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
            let_go(process, mapping.context);
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
