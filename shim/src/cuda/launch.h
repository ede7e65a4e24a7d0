/* What the calls have in common that give the GPU work. */
#ifndef AP_CUDA_LAUNCH_H
#define AP_CUDA_LAUNCH_H

#include "estimate.h"
#include "front.h"
#include "gate.h"

/* A program that is linked with us has our function's address from before we knew. */
#define LAUNCH(name, parameters, arguments, key, stream, per_thread)                             \
    CUresult name parameters                                                                     \
    {                                                                                            \
        CUresult(*driver) parameters = real_cuda()->name;                                        \
        struct ap_pass pass;                                                                     \
        if (!driver)                                                                             \
            return CUDA_ERROR_NOT_FOUND;                                                         \
        if (!ap_gates_on())                                                                      \
            return driver arguments;                                                             \
        CUresult result = ap_gate_enter(&pass, key, stream, per_thread);                         \
        if (result != CUDA_SUCCESS)                                                              \
            return result;                                                                       \
        result = driver arguments;                                                               \
        ap_gate_leave(&pass, result);                                                            \
        return result;                                                                           \
    }

#endif
