/* Memory made by cuMemCreate (or cuMemAlloc) that is given to other processes as a descriptor or a
 * fabric handle. Charged once for all of a share that have it, as with IPC (ipc.c); a descriptor on
 * its way keeps the charge, too (common/descriptor.h), with the process that gave it out.
 *
 * A multicast group can be exported and imported as well: it is no memory, and costs nothing. */
#include "../common/account.h"
#include "../common/descriptor.h"
#include "../common/hold.h"
#include "charge.h"
#include "device.h"
#include "mem_vmm.h"

#define FABRIC_HANDLE_SIZE 64

/* Moves a charge to where others find it, if it is not there already. 0: it stays as it is. */
static uint32_t make_common(struct ap_process *process, struct ap_record *record, uint64_t object,
                            enum ap_kind kind)
{
    if (record->kind == AP_HELD || record->kind == AP_GIVEN)
        return (uint32_t)record->bytes;
    if (record->kind != AP_LARGE || record->bytes == 0)
        return 0;
    uint32_t hold = ap_hold_make(process, &process->gpus[record->gpu], object, record->bytes);
    if (hold) {
        record->kind = kind;
        record->bytes = hold;
    }
    return hold;
}

static void give_descriptor(struct ap_process *process, uint32_t hold, int fd, bool own_file)
{
    if (!hold)
        return;
    ap_descriptor_mark(fd, ap_hold_object(process, hold), ap_hold_size(process, hold));
    ap_descriptor_keep(process, hold, fd, own_file);
}

static void give(struct ap_process *process, uint64_t handle, const void *shareable, int type)
{
    struct ap_record record, old;
    bool had_old, by_descriptor = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (!by_descriptor && type != CU_MEM_HANDLE_TYPE_FABRIC)
        return;
    if (!ap_table_get(&process->handles, handle, &record))
        return;
    uint64_t object = by_descriptor ? ap_descriptor_object()
                                    : ap_hold_known_by(shareable, FABRIC_HANDLE_SIZE);
    uint32_t hold = make_common(process, &record, object, AP_HELD);
    (void)ap_table_put(&process->handles, &record, &old, &had_old);
    if (by_descriptor)
        give_descriptor(process, hold, *(const int *)shareable, false);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      int type, unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemExportToShareableHandle)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !shareable)
        return real->cuMemExportToShareableHandle(shareable, handle, type, flags);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuMemExportToShareableHandle(shareable, handle, type, flags);
    if (result == CUDA_SUCCESS)
        give(process, handle, shareable, type);
    ap_unlock(&process->vmm_lock);
    return result;
}

/* What a shareable handle is for: 0 when it does not say; its size then is 0, too. */
static uint64_t object_of(const void *shareable, int type, uint64_t *bytes)
{
    *bytes = 0;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return ap_descriptor_read((int)(intptr_t)shareable, bytes);
    return type == CU_MEM_HANDLE_TYPE_FABRIC ? ap_hold_known_by(shareable, FABRIC_HANDLE_SIZE) : 0;
}

bool ap_import_charge(struct ap_process *process, struct ap_gpu *gpu, uint64_t object,
                      uint64_t bytes, struct ap_record *record)
{
    record->gpu = (uint16_t)gpu->index;
    record->bytes = object ? ap_hold_find(process, gpu, object) : 0;
    record->kind = AP_HELD;
    if (record->bytes)
        return true;
    record->bytes = bytes > UINT64_MAX - AP_BLOCK ? UINT64_MAX
                                                  : (bytes + AP_BLOCK - 1) / AP_BLOCK * AP_BLOCK;
    record->kind = bytes ? AP_LARGE : AP_UNSIZED;
    if (ap_gpu_reserve(process, gpu, record->bytes))
        return true;
    ap_gpu_count_denied(gpu);
    return false;
}

/* False: it does not fit, or cannot be remembered. */
static bool take(struct ap_process *process, uint64_t handle, uint64_t object, uint64_t bytes)
{
    CUmemAllocationProp properties = {0};
    struct ap_record record = {.key = handle, .count = 1};
    if (real_cuda()->cuMemGetAllocationPropertiesFromHandle(&properties, handle) != CUDA_SUCCESS)
        return ap_memory_note(process, &record); /* a multicast group */
    if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return true;
    struct ap_gpu *gpu = ap_gpu_of_device(process, properties.location.id);
    if (!gpu || !ap_import_charge(process, gpu, object, bytes, &record))
        return false;
    if (ap_memory_note(process, &record))
        return true;
    ap_charge_drop(process, &record);
    return false;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        int type)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    CUmemGenericAllocationHandle given = 0;
    uint64_t bytes;
    if (!real->cuMemImportFromShareableHandle || !real->cuMemRelease ||
        !real->cuMemGetAllocationPropertiesFromHandle)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!handle)
        return real->cuMemImportFromShareableHandle(handle, shareable, type);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuMemImportFromShareableHandle(&given, shareable, type);
    if (result == CUDA_SUCCESS) {
        uint64_t object = object_of(shareable, type, &bytes);
        if (!take(process, given, object, bytes)) {
            (void)real->cuMemRelease(given);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    ap_unlock(&process->vmm_lock);
    if (result == CUDA_SUCCESS)
        *handle = given;
    return result;
}

/* A dma-buf holds the memory behind an address (measured), also when that is freed. */
static void give_range(struct ap_process *process, CUdeviceptr pointer, int fd)
{
    const struct real_cuda *real = real_cuda();
    struct ap_record record, old;
    bool had_old;
    CUdeviceptr base = pointer;
    if (ap_table_get(&process->handles, ap_memory_at(pointer), &record)) {
        uint32_t hold = make_common(process, &record, ap_descriptor_object(), AP_HELD);
        (void)ap_table_put(&process->handles, &record, &old, &had_old);
        give_descriptor(process, hold, fd, true);
        return;
    }
    if (real->cuMemGetAddressRange_v2)
        (void)real->cuMemGetAddressRange_v2(&base, NULL, pointer);
    if (!ap_table_take(&process->pointers, base, &record))
        return;
    uint32_t hold = make_common(process, &record, ap_descriptor_object(), AP_HELD);
    (void)ap_table_put(&process->pointers, &record, &old, &had_old);
    give_descriptor(process, hold, fd, true);
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t bytes, int type,
                                       unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuMemGetHandleForAddressRange)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !handle || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
        return real->cuMemGetHandleForAddressRange(handle, pointer, bytes, type, flags);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuMemGetHandleForAddressRange(handle, pointer, bytes, type, flags);
    if (result == CUDA_SUCCESS)
        give_range(process, pointer, *(const int *)handle);
    ap_unlock(&process->vmm_lock);
    return result;
}
