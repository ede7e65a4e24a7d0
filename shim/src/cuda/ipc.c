/* Memory of one process that others open by an IPC handle. It is charged once for all processes of
 * the share that have it, until the last of them closes it or dies: the one that makes the handle
 * moves its charge to where they find it by the handle's bytes (common/hold.h). What another share
 * made, or could not be moved, is charged anew to who opens it.
 *
 * Pieces up to 1 MiB come with the 2 MiB block that they lie in, so each process that opens some is
 * charged their blocks, beside the one that made them. */
#include "../common/account.h"
#include "../common/hold.h"
#include "charge.h"
#include "device.h"

typedef CUresult (*open_function)(CUdeviceptr *, CUipcMemHandle, unsigned int);

/* The handle says which memory of which process it is (measured: the same at each call). */
static uint64_t object_of(const CUipcMemHandle *handle)
{
    return ap_hold_known_by(handle->reserved, sizeof handle->reserved);
}

/* The handle is for the whole allocation, wherever in it the pointer points. */
static CUdeviceptr base_of(CUdeviceptr pointer)
{
    const struct real_cuda *real = real_cuda();
    CUdeviceptr base = 0;
    if (!real->cuMemGetAddressRange_v2 ||
        real->cuMemGetAddressRange_v2(&base, NULL, pointer) != CUDA_SUCCESS)
        return pointer;
    return base;
}

static void give(struct ap_process *process, CUdeviceptr pointer, const CUipcMemHandle *handle)
{
    struct ap_record record, old;
    bool had_old;
    if (!ap_table_take(&process->pointers, base_of(pointer), &record))
        return;
    if (record.kind == AP_LARGE) {
        uint32_t hold = ap_hold_make(process, &process->gpus[record.gpu], object_of(handle),
                                     record.bytes);
        if (hold) {
            record.kind = AP_GIVEN;
            record.bytes = hold;
        }
    }
    /* Without memory to put it back the charge stays: too much, never too little. */
    (void)ap_table_put(&process->pointers, &record, &old, &had_old);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    struct ap_process *process = ap_process();
    if (!real_cuda()->cuIpcGetMemHandle)
        return CUDA_ERROR_NOT_FOUND;
    if (!process || !handle)
        return real_cuda()->cuIpcGetMemHandle(handle, pointer);
    ap_lock(&process->import_lock);
    CUresult result = real_cuda()->cuIpcGetMemHandle(handle, pointer);
    if (result == CUDA_SUCCESS)
        give(process, pointer, handle);
    ap_unlock(&process->import_lock);
    return result;
}

/* Where the memory lies: not always on the current context's device. */
static struct ap_gpu *gpu_of_pointer(struct ap_ticket *ticket, CUdeviceptr pointer)
{
    const struct real_cuda *real = real_cuda();
    int device = -1;
    if (!real->cuPointerGetAttribute ||
        real->cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) !=
            CUDA_SUCCESS)
        return ticket->gpu;
    return ap_gpu_of_device(ticket->process, device);
}

static bool charge_anew(struct ap_ticket *ticket, CUdeviceptr pointer)
{
    const struct real_cuda *real = real_cuda();
    size_t bytes = 0;
    if (!real->cuMemGetAddressRange_v2 ||
        real->cuMemGetAddressRange_v2(NULL, &bytes, pointer) != CUDA_SUCCESS || bytes == 0)
        return false;
    if (!ap_charge_reserve(ticket, bytes))
        return false;
    if (ap_charge_settle(ticket, pointer, bytes))
        return true;
    ap_charge_end_refused(ticket);
    return false;
}

/* Charges what was opened at `pointer`. False: it does not fit, or cannot be remembered. */
static bool take(struct ap_process *process, CUdeviceptr pointer, const CUipcMemHandle *handle)
{
    struct ap_ticket ticket = {.process = process};
    if (ap_charge_where(&ticket) != CUDA_SUCCESS)
        return false;
    ticket.gpu = gpu_of_pointer(&ticket, pointer);
    if (!ticket.gpu)
        return false;
    struct ap_record record = {.key = pointer,
                               .bytes = ap_hold_find(process, ticket.gpu, object_of(handle)),
                               .context = ticket.context,
                               .gpu = (uint16_t)ticket.gpu->index,
                               .kind = AP_HELD};
    bool taken = record.bytes ? ap_charge_remember(&ticket, &record)
                              : charge_anew(&ticket, pointer);
    if (!taken && record.bytes)
        ap_charge_drop(process, &record);
    return taken;
}

/* A process that opens a handle again gets the same address (measured), and must close it as often;
 * so the record counts. */
static CUresult open_handle(open_function driver, CUdeviceptr *pointer, CUipcMemHandle handle,
                            unsigned int flags)
{
    struct ap_process *process = ap_process();
    CUdeviceptr given = 0;
    if (!driver || !real_cuda()->cuIpcCloseMemHandle)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!pointer)
        return driver(pointer, handle, flags);
    ap_lock(&process->import_lock);
    CUresult result = driver(&given, handle, flags);
    if (result == CUDA_SUCCESS && !ap_table_ref_known(&process->pointers, given)) {
        if (take(process, given, &handle)) {
            (void)ap_table_ref_known(&process->pointers, given);
        } else {
            (void)real_cuda()->cuIpcCloseMemHandle(given);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    ap_unlock(&process->import_lock);
    if (result == CUDA_SUCCESS)
        *pointer = given;
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    return open_handle(real_cuda()->cuIpcOpenMemHandle, pointer, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    return open_handle(real_cuda()->cuIpcOpenMemHandle_v2, pointer, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    struct ap_process *process = ap_process();
    struct ap_record last;
    if (!real_cuda()->cuIpcCloseMemHandle)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return real_cuda()->cuIpcCloseMemHandle(pointer);
    ap_lock(&process->import_lock);
    CUresult result = real_cuda()->cuIpcCloseMemHandle(pointer);
    if (result == CUDA_SUCCESS && ap_table_unref(&process->pointers, pointer, &last))
        ap_charge_drop(process, &last);
    ap_unlock(&process->import_lock);
    return result;
}
