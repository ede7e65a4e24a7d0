/* Kernels are launched. Where no share's cores are limited by time these functions are not there at
 * all (front.c): what a program finds is the driver's. */
#include "launch.h"

static uint64_t blocks(unsigned int x, unsigned int y, unsigned int z)
{
    return (uint64_t)x * y * z;
}

#define PLAIN_PARAMETERS                                                                         \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,         \
     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,      \
     CUstream stream, void **parameters, void **extra)
#define PLAIN_ARGUMENTS                                                                          \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra)
#define PLAIN_KEY ap_estimate_key(function, blocks(grid_x, grid_y, grid_z))

LAUNCH(cuLaunchKernel, PLAIN_PARAMETERS, PLAIN_ARGUMENTS, PLAIN_KEY, stream, false)
LAUNCH(cuLaunchKernel_ptsz, PLAIN_PARAMETERS, PLAIN_ARGUMENTS, PLAIN_KEY, stream, true)

#define COOPERATIVE_PARAMETERS                                                                   \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,         \
     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,      \
     CUstream stream, void **parameters)
#define COOPERATIVE_ARGUMENTS                                                                    \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters)

LAUNCH(cuLaunchCooperativeKernel, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS, PLAIN_KEY, stream,
       false)
LAUNCH(cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS, PLAIN_KEY,
       stream, true)

/* Without a configuration the driver has its own error. */
static uint64_t key_of(const CUlaunchConfig *config, CUfunction function)
{
    return ap_estimate_key(function,
                           config ? blocks(config->grid_x, config->grid_y, config->grid_z) : 0);
}

#define EX_PARAMETERS                                                                            \
    (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
#define EX_ARGUMENTS (config, function, parameters, extra)

LAUNCH(cuLaunchKernelEx, EX_PARAMETERS, EX_ARGUMENTS, key_of(config, function),
       config ? config->stream : NULL, false)
LAUNCH(cuLaunchKernelEx_ptsz, EX_PARAMETERS, EX_ARGUMENTS, key_of(config, function),
       config ? config->stream : NULL, true)

/* The oldest ones; the block's shape is the function's. */
LAUNCH(cuLaunch, (CUfunction function), (function), ap_estimate_key(function, 1), NULL, false)
LAUNCH(cuLaunchGrid, (CUfunction function, int width, int height), (function, width, height),
       ap_estimate_key(function, blocks((unsigned)width, (unsigned)height, 1)), NULL, false)
LAUNCH(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream),
       (function, width, height, stream),
       ap_estimate_key(function, blocks((unsigned)width, (unsigned)height, 1)), stream, false)

#define DEVICES_MOST 64u

/* Makes the context of a stream current, until it is popped; false: nothing was done. */
static bool push_context_of(CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    return real->cuStreamGetCtx && real->cuCtxPushCurrent_v2 && real->cuCtxPopCurrent_v2 &&
           real->cuStreamGetCtx(stream, &context) == CUDA_SUCCESS &&
           real->cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

static void pop_context(void)
{
    CUcontext context;
    (void)real_cuda()->cuCtxPopCurrent_v2(&context);
}

/* Each of the devices in turn; the slots of several GPUs may lie apart, so all but the last one may
 * have ended when the launch comes. */
static CUresult enter_all(struct ap_pass *passes, const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *one = &list[i];
        uint64_t key = ap_estimate_key(one->function,
                                       blocks(one->grid_x, one->grid_y, one->grid_z));
        passes[i].gate = NULL;
        if (result != CUDA_SUCCESS || !push_context_of(one->stream))
            continue;
        result = ap_gate_enter(&passes[i], key, one->stream, false);
        pop_context();
    }
    return result;
}

static void leave_all(const struct ap_pass *passes, const CUDA_LAUNCH_PARAMS *list, unsigned count,
                      CUresult result)
{
    for (unsigned i = 0; i < count; i++)
        if (passes[i].gate && push_context_of(list[i].stream)) {
            ap_gate_leave(&passes[i], result);
            pop_context();
        }
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                              unsigned int flags)
{
    const struct real_cuda *real = real_cuda();
    struct ap_pass passes[DEVICES_MOST];
    if (!real->cuLaunchCooperativeKernelMultiDevice)
        return CUDA_ERROR_NOT_FOUND;
    if (!ap_gates_on() || !list || count > DEVICES_MOST)
        return real->cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    CUresult result = enter_all(passes, list, count);
    bool goes = result == CUDA_SUCCESS;
    if (goes)
        result = real->cuLaunchCooperativeKernelMultiDevice(list, count, flags);
    leave_all(passes, list, count, result);
    return result;
}
