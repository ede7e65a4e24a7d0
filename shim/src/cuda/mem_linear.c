/* Linear, pitched and managed memory, and its release.
 *
 * Each call: reserve, let the driver allocate, settle. The driver writes to our variables; the
 * caller's are set only on success, so a refusal leaves them untouched. What the driver would
 * refuse anyway goes to it unchanged, for its own error. */
#include "charge.h"

#define PITCH_STEP 512u /* the driver's pitch is the width rounded up to this, or more */

typedef CUresult (*free_function)(CUdeviceptr);

static CUresult free_v1(CUdeviceptr pointer)
{
    return real_cuda()->cuMemFree((CUdeviceptr_v1)pointer);
}

static CUresult free_v2(CUdeviceptr pointer)
{
    return real_cuda()->cuMemFree_v2(pointer);
}

/* After the driver's call: CUDA_SUCCESS if it allocated and the share has room for what it took. */
static CUresult settle(struct ap_ticket *ticket, CUresult result, CUdeviceptr pointer,
                       uint64_t bytes, free_function undo)
{
    if (result != CUDA_SUCCESS) {
        ap_charge_cancel(ticket);
        return result;
    }
    if (ap_charge_settle(ticket, pointer, bytes))
        return CUDA_SUCCESS;
    (void)undo(pointer);
    ap_charge_end_refused(ticket);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    const struct real_cuda *real = real_cuda();
    struct ap_ticket ticket;
    CUdeviceptr given = 0;
    if (!real->cuMemAlloc_v2 || !real->cuMemFree_v2)
        return CUDA_ERROR_NOT_FOUND;
    if (!pointer || bytes == 0)
        return real->cuMemAlloc_v2(pointer, bytes);
    CUresult result = ap_charge_begin(&ticket, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuMemAlloc_v2(&given, bytes);
    result = settle(&ticket, result, given, bytes, free_v2);
    if (result == CUDA_SUCCESS)
        *pointer = given;
    return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes)
{
    const struct real_cuda *real = real_cuda();
    struct ap_ticket ticket;
    CUdeviceptr_v1 given = 0;
    if (!real->cuMemAlloc || !real->cuMemFree)
        return CUDA_ERROR_NOT_FOUND;
    if (!pointer || bytes == 0)
        return real->cuMemAlloc(pointer, bytes);
    CUresult result = ap_charge_begin(&ticket, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuMemAlloc(&given, bytes);
    result = settle(&ticket, result, given, bytes, free_v1);
    if (result == CUDA_SUCCESS)
        *pointer = given;
    return result;
}

/* Bytes of `height` rows; as good as endless when that overflows, so that it is refused. */
static uint64_t rows(uint64_t pitch, uint64_t height)
{
    uint64_t bytes;
    return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t likely_pitch(uint64_t width)
{
    uint64_t padded;
    if (__builtin_add_overflow(width, PITCH_STEP - 1, &padded))
        return UINT64_MAX;
    return padded / PITCH_STEP * PITCH_STEP;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned int element)
{
    const struct real_cuda *real = real_cuda();
    struct ap_ticket ticket;
    CUdeviceptr given = 0;
    size_t given_pitch = 0;
    if (!real->cuMemAllocPitch_v2 || !real->cuMemFree_v2)
        return CUDA_ERROR_NOT_FOUND;
    if (!pointer || !pitch || width == 0 || height == 0)
        return real->cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    CUresult result = ap_charge_begin(&ticket, rows(likely_pitch(width), height));
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuMemAllocPitch_v2(&given, &given_pitch, width, height, element);
    result = settle(&ticket, result, given, rows(given_pitch, height), free_v2);
    if (result != CUDA_SUCCESS)
        return result;
    *pointer = given;
    *pitch = given_pitch;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width,
                         unsigned int height, unsigned int element)
{
    const struct real_cuda *real = real_cuda();
    struct ap_ticket ticket;
    CUdeviceptr_v1 given = 0;
    unsigned int given_pitch = 0;
    if (!real->cuMemAllocPitch || !real->cuMemFree)
        return CUDA_ERROR_NOT_FOUND;
    if (!pointer || !pitch || width == 0 || height == 0)
        return real->cuMemAllocPitch(pointer, pitch, width, height, element);
    CUresult result = ap_charge_begin(&ticket, rows(likely_pitch(width), height));
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuMemAllocPitch(&given, &given_pitch, width, height, element);
    result = settle(&ticket, result, given, rows(given_pitch, height), free_v1);
    if (result != CUDA_SUCCESS)
        return result;
    *pointer = given;
    *pitch = given_pitch;
    return CUDA_SUCCESS;
}

/* Managed memory takes device memory page by page as it is used there; charged in full at once. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_ticket ticket;
    CUdeviceptr given = 0;
    if (!real->cuMemAllocManaged || !real->cuMemFree_v2)
        return CUDA_ERROR_NOT_FOUND;
    if (!pointer || bytes == 0)
        return real->cuMemAllocManaged(pointer, bytes, flags);
    CUresult result = ap_charge_begin(&ticket, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    ap_charge_managed(&ticket);
    result = real->cuMemAllocManaged(&given, bytes, flags);
    result = settle(&ticket, result, given, bytes, free_v2);
    if (result == CUDA_SUCCESS)
        *pointer = given;
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    return real_cuda()->cuMemFree_v2 ? ap_charge_free(pointer, free_v2) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
    return real_cuda()->cuMemFree ? ap_charge_free(pointer, free_v1) : CUDA_ERROR_NOT_FOUND;
}
