/* Limits of a context that cost device memory. Measured (H200, driver 580):
 *
 *   stack   taken and given back in the call: bytes a thread * threads that the GPU can run at once
 *   heap    taken at the first launch of a kernel that uses it, then fixed: its size and 2 MiB more
 *   others  nothing (what printf prints goes to host memory)
 *
 * So a stack is reserved and settled like a context; a heap is charged when it is allowed. */
#include "context.h"
#include "device.h"

#define STACK_MOST (UINT64_C(512) << 10) /* of a thread, on any GPU; more is the driver's error */

static uint64_t whole_blocks(uint64_t bytes)
{
    uint64_t padded;
    if (__builtin_add_overflow(bytes, AP_BLOCK - 1, &padded))
        return UINT64_MAX;
    return padded / AP_BLOCK * AP_BLOCK;
}

/* Threads that the current context's GPU can run at once; 0: not known. */
static uint64_t threads(void)
{
    const struct real_cuda *real = real_cuda();
    CUdevice device = -1;
    int processors = 0, each = 0;
    if (!real->cuDeviceGetAttribute || real->cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        real->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) !=
            CUDA_SUCCESS ||
        real->cuDeviceGetAttribute(&each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                   device) != CUDA_SUCCESS ||
        processors < 0 || each < 0)
        return 0;
    return (uint64_t)processors * (uint64_t)each;
}

static CUresult set_stack(struct ap_process *process, struct ap_gpu *gpu, size_t value)
{
    const struct real_cuda *real = real_cuda();
    struct ap_growth growth;
    size_t old = 0;
    bool known = real->cuCtxGetLimit &&
                 real->cuCtxGetLimit(&old, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS;
    uint64_t more = known && value > old && value <= STACK_MOST ? value - old : 0;
    CUresult result = ap_growth_begin(&growth, process, gpu, whole_blocks(more * threads()));
    if (result != CUDA_SUCCESS)
        return result;
    result = real->cuCtxSetLimit(CU_LIMIT_STACK_SIZE, value);
    if (result != CUDA_SUCCESS) {
        ap_growth_cancel(&growth);
        return result;
    }
    if (ap_growth_settle(&growth))
        return CUDA_SUCCESS;
    if (known)
        (void)real->cuCtxSetLimit(CU_LIMIT_STACK_SIZE, old);
    ap_growth_undone(&growth);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set_heap(struct ap_process *process, struct ap_gpu *gpu, size_t value)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    uint64_t before = 0, bytes = whole_blocks(value);
    if (!real->cuCtxGetCurrent || real->cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return real->cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, value);
    bytes = bytes > UINT64_MAX - AP_BLOCK ? bytes : bytes + AP_BLOCK;
    if (!ap_truth_promise(process, gpu, ap_number_of(context), bytes, &before))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = real->cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, value);
    if (result != CUDA_SUCCESS)
        (void)ap_truth_promise(process, gpu, ap_number_of(context), before, &before);
    return result;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
    const struct real_cuda *real = real_cuda();
    struct ap_process *process = ap_process();
    if (!real->cuCtxSetLimit)
        return CUDA_ERROR_NOT_FOUND;
    struct ap_gpu *gpu = process ? ap_gpu_of_current(process) : NULL;
    if (gpu && limit == CU_LIMIT_STACK_SIZE)
        return set_stack(process, gpu, value);
    if (gpu && limit == CU_LIMIT_MALLOC_HEAP_SIZE)
        return set_heap(process, gpu, value);
    CUresult result = real->cuCtxSetLimit(limit, value);
    if (gpu)
        ap_truth_refresh(process, gpu, 0);
    return result;
}
