/* Arrays and mipmapped arrays: charged when they are made, until they or their context go.
 *
 * The driver says before how much one will take: of an array of the same shape whose memory is to
 * be mapped later, which takes none, it tells the requirements (since CUDA 11.6). Before that, and
 * for what that cannot be asked of, array_size.c knows. Up to 1 MiB arrays share blocks of 2 MiB
 * with each other and nothing else; more takes blocks of its own (measured: H200, driver 580).
 *
 * Sparse arrays and those with deferred mapping take nothing until memory from cuMemCreate is
 * mapped to them, and that was charged when it was made. */
#include <stdatomic.h>

#include "../common/account.h"
#include "array_size.h"
#include "charge.h"
#include "mem_vmm.h"

#define SMALL_MOST (UINT64_C(1) << 20)

enum entry { ARRAY_V1, ARRAY, ARRAY3D_V1, ARRAY3D, MIPMAPPED };

/* One call: what the application asks for, in its words and as a shape. */
struct request {
    enum entry entry;
    const void *descriptor;
    unsigned int levels;
    CUDA_ARRAY3D_DESCRIPTOR shape;
};

static CUresult ask_driver(const struct request *request, void **made)
{
    const struct real_cuda *real = real_cuda();
    switch (request->entry) {
    case ARRAY_V1:
        return real->cuArrayCreate((CUarray *)made, request->descriptor);
    case ARRAY:
        return real->cuArrayCreate_v2((CUarray *)made, request->descriptor);
    case ARRAY3D_V1:
        return real->cuArray3DCreate((CUarray *)made, request->descriptor);
    case ARRAY3D:
        return real->cuArray3DCreate_v2((CUarray *)made, request->descriptor);
    default:
        return real->cuMipmappedArrayCreate((CUmipmappedArray *)made, request->descriptor,
                                            request->levels);
    }
}

static void destroy(const struct request *request, void *made)
{
    if (request->entry == MIPMAPPED)
        (void)real_cuda()->cuMipmappedArrayDestroy(made);
    else
        (void)real_cuda()->cuArrayDestroy(made);
}

static CUresult requirements(const struct request *request, CUdevice device, void *twin,
                             CUDA_ARRAY_MEMORY_REQUIREMENTS *out)
{
    const struct real_cuda *real = real_cuda();
    if (request->entry == MIPMAPPED)
        return real->cuMipmappedArrayGetMemoryRequirements(out, twin, device);
    return real->cuArrayGetMemoryRequirements(out, twin, device);
}

/* What the driver will take, as it says itself; CUDA_ERROR_NOT_FOUND where it cannot be asked. */
static CUresult ask_size(const struct request *request, uint64_t *bytes)
{
    const struct real_cuda *real = real_cuda();
    CUDA_ARRAY3D_DESCRIPTOR shape = request->shape;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
    struct request twin = {ARRAY3D, &shape, request->levels, shape};
    CUdevice device = -1;
    void *made = NULL;
    if (request->entry == MIPMAPPED)
        twin.entry = MIPMAPPED;
    if (!real->cuArray3DCreate_v2 || !real->cuCtxGetDevice ||
        !real->cuArrayGetMemoryRequirements || !real->cuMipmappedArrayGetMemoryRequirements)
        return CUDA_ERROR_NOT_FOUND;
    shape.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    CUresult result = real->cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS)
        result = ask_driver(&twin, &made);
    if (result != CUDA_SUCCESS)
        return result;
    result = requirements(&twin, device, made, &needs);
    destroy(&twin, made);
    *bytes = needs.size;
    return result;
}

static bool reserve(struct ap_ticket *ticket, const struct request *request, uint64_t asked,
                    struct ap_record *record)
{
    uint64_t bytes = asked ? asked : ap_array_size(&request->shape, request->levels);
    record->kind = bytes > SMALL_MOST ? AP_LARGE : AP_SMALL_ARRAY;
    if (record->kind == AP_SMALL_ARRAY) {
        /* The driver's figure is for an array by itself, in steps of 64 KiB. */
        record->bytes = ap_array_size(&request->shape, request->levels);
        if (record->bytes > bytes)
            record->bytes = bytes;
        return ap_charge_small_array(ticket->process, ticket->gpu, record->bytes) ||
               (ap_gpu_await_dead(ticket->process, ticket->gpu, AP_BLOCK) &&
                ap_charge_small_array(ticket->process, ticket->gpu, record->bytes));
    }
    record->bytes = bytes > UINT64_MAX - AP_BLOCK ? UINT64_MAX
                                                  : (bytes + AP_BLOCK - 1) / AP_BLOCK * AP_BLOCK;
    return ap_gpu_reserve_patiently(ticket->process, ticket->gpu, record->bytes);
}

static CUresult make(struct ap_ticket *ticket, const struct request *request,
                     struct ap_record *record, void **array)
{
    void *made = NULL;
    CUresult result = ask_driver(request, &made);
    record->key = (uint64_t)(uintptr_t)made;
    if (result == CUDA_SUCCESS && !ap_charge_remember(ticket, record)) {
        destroy(request, made);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        *array = made;
    else
        ap_charge_drop(ticket->process, record);
    return result;
}

static CUresult create(const struct request *request, void **array)
{
    struct ap_ticket ticket = {.process = ap_process()};
    uint64_t asked = 0;
    if (request->shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return ask_driver(request, array);
    if (!ticket.process)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ap_charge_where(&ticket);
    if (result != CUDA_SUCCESS)
        return result;
    CUresult answer = ask_size(request, &asked);
    struct ap_record record = {.context = ticket.context, .gpu = (uint16_t)ticket.gpu->index};
    if (reserve(&ticket, request, answer == CUDA_SUCCESS ? asked : 0, &record)) {
        ap_gpu_move_begins(ticket.gpu);
        result = make(&ticket, request, &record, array);
        ap_gpu_move_ends(ticket.gpu);
        return result;
    }
    /* A shape that the driver takes for wrong is not refused for its size. */
    if (answer == CUDA_ERROR_INVALID_VALUE)
        return answer;
    ap_gpu_count_denied(ticket.gpu);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor)
{
    struct request request = {ARRAY_V1, descriptor, 1, {0}};
    if (!real_cuda()->cuArrayCreate || !real_cuda()->cuArrayDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!array || !descriptor)
        return real_cuda()->cuArrayCreate(array, descriptor);
    request.shape = (CUDA_ARRAY3D_DESCRIPTOR){descriptor->Width, descriptor->Height, 0,
                                              descriptor->Format, descriptor->NumChannels, 0};
    return create(&request, (void **)array);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    struct request request = {ARRAY, descriptor, 1, {0}};
    if (!real_cuda()->cuArrayCreate_v2 || !real_cuda()->cuArrayDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!array || !descriptor)
        return real_cuda()->cuArrayCreate_v2(array, descriptor);
    request.shape = (CUDA_ARRAY3D_DESCRIPTOR){descriptor->Width, descriptor->Height, 0,
                                              descriptor->Format, descriptor->NumChannels, 0};
    return create(&request, (void **)array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor)
{
    struct request request = {ARRAY3D_V1, descriptor, 1, {0}};
    if (!real_cuda()->cuArray3DCreate || !real_cuda()->cuArrayDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!array || !descriptor)
        return real_cuda()->cuArray3DCreate(array, descriptor);
    request.shape = (CUDA_ARRAY3D_DESCRIPTOR){
        descriptor->Width,  descriptor->Height,      descriptor->Depth,
        descriptor->Format, descriptor->NumChannels, descriptor->Flags};
    return create(&request, (void **)array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    struct request request = {ARRAY3D, descriptor, 1, {0}};
    if (!real_cuda()->cuArray3DCreate_v2 || !real_cuda()->cuArrayDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!array || !descriptor)
        return real_cuda()->cuArray3DCreate_v2(array, descriptor);
    request.shape = *descriptor;
    return create(&request, (void **)array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                unsigned int levels)
{
    struct request request = {MIPMAPPED, descriptor, levels, {0}};
    if (!real_cuda()->cuMipmappedArrayCreate || !real_cuda()->cuMipmappedArrayDestroy)
        return CUDA_ERROR_NOT_FOUND;
    if (!array || !descriptor || levels == 0)
        return real_cuda()->cuMipmappedArrayCreate(array, descriptor, levels);
    request.shape = *descriptor;
    return create(&request, (void **)array);
}

/* What was mapped to it goes with it, before another gets its handle. */
static CUresult gone(struct ap_process *process, CUresult result, uint64_t key)
{
    if (process && result == CUDA_SUCCESS)
        ap_unbind_all(process, key);
    if (process)
        ap_unlock(&process->vmm_lock);
    return result;
}

static struct ap_process *going(void)
{
    struct ap_process *process = ap_process();
    if (process)
        ap_lock(&process->vmm_lock);
    return process;
}

static CUresult destroy_array(CUdeviceptr key)
{
    struct ap_process *process = going();
    return gone(process, real_cuda()->cuArrayDestroy((CUarray)(uintptr_t)key), key);
}

static CUresult destroy_mipmapped(CUdeviceptr key)
{
    struct ap_process *process = going();
    CUmipmappedArray array = (CUmipmappedArray)(uintptr_t)key;
    return gone(process, real_cuda()->cuMipmappedArrayDestroy(array), key);
}

CUresult cuArrayDestroy(CUarray array)
{
    if (!real_cuda()->cuArrayDestroy)
        return CUDA_ERROR_NOT_FOUND;
    return ap_charge_free((CUdeviceptr)(uintptr_t)array, destroy_array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    if (!real_cuda()->cuMipmappedArrayDestroy)
        return CUDA_ERROR_NOT_FOUND;
    return ap_charge_free((CUdeviceptr)(uintptr_t)array, destroy_mipmapped);
}
