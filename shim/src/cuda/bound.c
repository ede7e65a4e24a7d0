/* Memory from cuMemCreate that has no address: mapped to arrays, or bound to multicast groups. It
 * stays charged while it is, also when its handle is released, and no longer than the array or the
 * group is there. Where a call takes away a part of what an earlier one put there, or more than
 * that at once, that stays charged until the array or the group goes: rather too much. */
#include "../common/account.h"
#include "../common/hold.h"
#include "device.h"
#include "mem_vmm.h"

#define AT_ONCE 32

static uint64_t place_of(uint64_t owner, uint64_t place)
{
    uint64_t both[2] = {owner, place};
    return ap_hold_known_by(both, sizeof both);
}

void ap_bind(struct ap_process *process, uint64_t owner, uint64_t place, uint64_t memory)
{
    struct ap_record record = {.key = place_of(owner, place), .bytes = memory, .context = owner};
    struct ap_record old;
    bool had_old = false;
    if (!ap_table_ref_known(&process->handles, memory))
        return;
    /* Without memory to note it the reference stays: rather too much. */
    if (ap_table_put(&process->bound, &record, &old, &had_old) && had_old)
        ap_memory_let_go(process, old.bytes);
}

void ap_unbind(struct ap_process *process, uint64_t owner, uint64_t place)
{
    struct ap_record record;
    if (ap_table_take(&process->bound, place_of(owner, place), &record))
        ap_memory_let_go(process, record.bytes);
}

void ap_unbind_all(struct ap_process *process, uint64_t owner)
{
    struct ap_record records[AT_ONCE];
    size_t count;
    while ((count = ap_table_take_context(&process->bound, owner, records, AT_ONCE)) > 0)
        for (size_t i = 0; i < count; i++)
            ap_memory_let_go(process, records[i].bytes);
}

static void note_mapped(struct ap_process *process, const CUarrayMapInfo *info)
{
    uint64_t owner = (uint64_t)(uintptr_t)info->resource;
    struct {
        int type;
        unsigned int words[sizeof info->subresource / sizeof(unsigned int)];
    } place = {.type = info->subresource_type};
    _Static_assert(sizeof place.words == sizeof info->subresource, "all of it");
    __builtin_memcpy(place.words, &info->subresource, sizeof place.words);
    uint64_t number = ap_hold_known_by(&place, sizeof place);
    if (info->operation == CU_MEM_OPERATION_TYPE_MAP)
        ap_bind(process, owner, number, info->handle);
    else
        ap_unbind(process, owner, number);
}

typedef CUresult (*map_function)(CUarrayMapInfo *, unsigned int, CUstream);

static CUresult map(map_function driver, CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    struct ap_process *process = ap_process();
    if (!driver)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !list)
        return driver(list, count, stream);
    ap_lock(&process->vmm_lock);
    CUresult result = driver(list, count, stream);
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
        note_mapped(process, &list[i]);
    ap_unlock(&process->vmm_lock);
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    return map(real_cuda()->cuMemMapArrayAsync, list, count, stream);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    return map(real_cuda()->cuMemMapArrayAsync_ptsz, list, count, stream);
}

/* The group itself takes nothing; it is noted so that what is bound to it goes with its last
 * reference or mapping. */
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const void *properties)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMulticastCreate)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !handle)
        return real->cuMulticastCreate(handle, properties);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuMulticastCreate(handle, properties);
    struct ap_record record = {.key = result == CUDA_SUCCESS ? *handle : 0, .count = 1};
    if (result == CUDA_SUCCESS)
        (void)ap_memory_note(process, &record);
    ap_unlock(&process->vmm_lock);
    return result;
}

/* Devices bind at the same offsets, so the memory's GPU is part of the place. */
static uint64_t place_in_group(uint16_t gpu, size_t offset)
{
    return (uint64_t)offset << 8 | gpu;
}

static struct ap_process *enter(void)
{
    struct ap_process *process = ap_process();
    if (process)
        ap_lock(&process->vmm_lock);
    return process;
}

static CUresult leave(struct ap_process *process, CUresult result,
                      CUmemGenericAllocationHandle group, size_t offset,
                      CUmemGenericAllocationHandle memory)
{
    struct ap_record record;
    if (!process)
        return result;
    if (result == CUDA_SUCCESS && ap_table_get(&process->handles, memory, &record))
        ap_bind(process, group, place_in_group(record.gpu, offset), memory);
    ap_unlock(&process->vmm_lock);
    return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle group, size_t offset,
                            CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                            unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuMulticastBindMem)
        return CUDA_ERROR_NOT_FOUND;
    struct ap_process *process = enter();
    CUresult result = real->cuMulticastBindMem(group, offset, memory, memory_offset, bytes, flags);
    return leave(process, result, group, offset, memory);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle group, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset,
                               size_t bytes, unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuMulticastBindMem_v2)
        return CUDA_ERROR_NOT_FOUND;
    struct ap_process *process = enter();
    CUresult result = real->cuMulticastBindMem_v2(group, device, offset, memory, memory_offset,
                                                  bytes, flags);
    return leave(process, result, group, offset, memory);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle group, size_t offset, CUdeviceptr pointer,
                             size_t bytes, unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuMulticastBindAddr)
        return CUDA_ERROR_NOT_FOUND;
    struct ap_process *process = enter();
    CUresult result = real->cuMulticastBindAddr(group, offset, pointer, bytes, flags);
    return leave(process, result, group, offset, ap_memory_at(pointer));
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle group, CUdevice device, size_t offset,
                                CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real->cuMulticastBindAddr_v2)
        return CUDA_ERROR_NOT_FOUND;
    struct ap_process *process = enter();
    CUresult result = real->cuMulticastBindAddr_v2(group, device, offset, pointer, bytes, flags);
    return leave(process, result, group, offset, ap_memory_at(pointer));
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle group, CUdevice device, size_t offset,
                           size_t bytes)
{
    struct ap_process *process = ap_process();
    if (!real_cuda()->cuMulticastUnbind)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return real_cuda()->cuMulticastUnbind(group, device, offset, bytes);
    ap_lock(&process->vmm_lock);
    CUresult result = real_cuda()->cuMulticastUnbind(group, device, offset, bytes);
    struct ap_gpu *gpu = result == CUDA_SUCCESS ? ap_gpu_of_device(process, device) : NULL;
    if (gpu)
        ap_unbind(process, group, place_in_group((uint16_t)gpu->index, offset));
    ap_unlock(&process->vmm_lock);
    return result;
}
