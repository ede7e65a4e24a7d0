#ifndef FAKE_CUDA_CODE_H
#define FAKE_CUDA_CODE_H

#include "cuda.h"

/* A kernel is launched in a context: what is loaded and taken only then. Without the lock. */
CUresult cu_code_used(CUcontext ctx, CUfunction kernel);

/* Something of a module is asked for, which loads it if that was put off. Without the lock. */
CUresult cu_module_used(CUmodule module, CUfunction *function, uint64_t *bytes);

/* Gives back the code of a context that ends; with the lock held. */
void cu_code_gone(CUcontext ctx);

#endif
