/* External memory: what another library (Vulkan, another process by a descriptor) made and CUDA
 * imports. It stays while it is imported or anything of it is mapped, a buffer or an array: all of
 * them are references to one charge. Charged once if the descriptor is one that a front of this
 * share gave out, else to who imports it. An unmarked dma-buf is not charged: it may be of any
 * device, or of none.
 *
 * Graphics interoperability (cuGraphics*, cuEGL*) only maps what OpenGL, EGL or VDPAU hold already
 * in this process: it takes nothing of its own. */
#include <stdatomic.h>

#include "../common/account.h"
#include "../common/descriptor.h"
#include "charge.h"
#include "mem_vmm.h"

/* The driver may give its handle out again while something is still mapped, so memory is noted by
 * numbers that no handle has (those are even). */
static uint64_t new_number(struct ap_process *process)
{
    return atomic_fetch_add(&process->externals_made, 1) * 2 + 1;
}

static uint64_t key_of(CUexternalMemory memory)
{
    return (uint64_t)(uintptr_t)memory;
}

static bool take(struct ap_process *process, CUexternalMemory memory, uint64_t object,
                 uint64_t bytes)
{
    struct ap_ticket ticket = {.process = process};
    struct ap_record record = {.key = new_number(process), .count = 1};
    struct ap_record name = {.key = key_of(memory), .bytes = record.key}, old;
    bool had_old;
    if (ap_charge_where(&ticket) != CUDA_SUCCESS ||
        !ap_import_charge(process, ticket.gpu, object, bytes, &record))
        return false;
    if (ap_memory_note(process, &record) &&
        ap_table_put(&process->externals, &name, &old, &had_old))
        return true;
    ap_memory_let_go(process, record.key);
    return false;
}

CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *descriptor)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    CUexternalMemory given = NULL;
    uint64_t object = 0, marked = 0;
    if (!real->cuImportExternalMemory || !real->cuDestroyExternalMemory)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!memory || !descriptor)
        return real->cuImportExternalMemory(memory, descriptor);
    bool is_dma_buf = descriptor->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD;
    ap_lock(&process->vmm_lock);
    /* The driver closes the descriptor when it succeeds (measured). */
    if (is_dma_buf || descriptor->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        object = ap_descriptor_read(descriptor->handle.fd, &marked);
    CUresult result = real->cuImportExternalMemory(&given, descriptor);
    bool charged = object || !is_dma_buf;
    if (result == CUDA_SUCCESS && charged &&
        !take(process, given, object, marked ? marked : descriptor->size)) {
        (void)real->cuDestroyExternalMemory(given);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    ap_unlock(&process->vmm_lock);
    if (result == CUDA_SUCCESS)
        *memory = given;
    return result;
}

/* What is mapped (a pointer or an array) is one more reference until it is freed. */
static void note_part(struct ap_process *process, CUexternalMemory memory, uint64_t part)
{
    struct ap_ticket ticket = {.process = process};
    struct ap_record name;
    if (ap_charge_where(&ticket) != CUDA_SUCCESS ||
        !ap_table_get(&process->externals, key_of(memory), &name) ||
        !ap_table_ref_known(&process->handles, name.bytes))
        return;
    struct ap_record record = {.key = part,
                               .bytes = name.bytes,
                               .context = ticket.context,
                               .gpu = (uint16_t)ticket.gpu->index,
                               .kind = AP_PART};
    /* Without memory to remember it the reference stays: rather too much. */
    (void)ap_charge_remember(&ticket, &record);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                         const void *descriptor)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuExternalMemoryGetMappedBuffer)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuExternalMemoryGetMappedBuffer(pointer, memory, descriptor);
    if (result == CUDA_SUCCESS && process)
        note_part(process, memory, *pointer);
    return result;
}

CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
                                                 const void *descriptor)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuExternalMemoryGetMappedMipmappedArray)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = real->cuExternalMemoryGetMappedMipmappedArray(array, memory, descriptor);
    if (result == CUDA_SUCCESS && process)
        note_part(process, memory, (uint64_t)(uintptr_t)*array);
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    struct ap_record name;
    if (!real->cuDestroyExternalMemory)
        return CUDA_ERROR_NOT_FOUND;
    if (!process)
        return real->cuDestroyExternalMemory(memory);
    ap_lock(&process->vmm_lock);
    CUresult result = real->cuDestroyExternalMemory(memory);
    if (result == CUDA_SUCCESS && ap_table_take(&process->externals, key_of(memory), &name))
        ap_memory_let_go(process, name.bytes);
    ap_unlock(&process->vmm_lock);
    return result;
}
