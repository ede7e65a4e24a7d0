/* The driver gives memory that pools do not use back to the card when something is synchronised;
 * so must their charges, or other processes of the share would wait for them in vain. And a program
 * that only launches and waits calls nothing else that would find what the launches took. */
#include "pool.h"
#include "truth.h"

static CUresult synchronized(CUresult result)
{
    struct ap_process *process = ap_process();
    if (process && result == CUDA_SUCCESS)
        ap_pools_look(process);
    if (process)
        ap_truth_all_refresh(process, AP_TRUTH_ROUTINE_MS);
    return result;
}

#define SYNCHRONIZE(name, parameters, arguments)                                                 \
    CUresult name parameters                                                                     \
    {                                                                                            \
        const struct real_cuda *real = real_cuda();                                              \
        return real->name ? synchronized(real->name arguments) : CUDA_ERROR_NOT_FOUND;           \
    }

SYNCHRONIZE(cuCtxSynchronize, (void), ())
SYNCHRONIZE(cuCtxSynchronize_v2, (CUcontext context), (context))
SYNCHRONIZE(cuEventSynchronize, (CUevent event), (event))
SYNCHRONIZE(cuStreamSynchronize, (CUstream stream), (stream))
SYNCHRONIZE(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
