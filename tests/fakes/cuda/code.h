#ifndef FAKE_CUDA_CODE_H
#define FAKE_CUDA_CODE_H

#include "cuda.h"

/* A kernel is launched in a context: what is loaded and taken only then. Without the lock. */
CUresult cu_code_used(CUcontext ctx, CUfunction kernel);

/* Something of a module is asked for, which loads it if that was put off. Without the lock. */
CUresult cu_module_used(CUmodule module, const char *name, CUfunction *function,
			uint64_t *bytes);

/* How long a kernel takes on a card that executes in time, nanoseconds: `spin` as long as its
 * first parameter says, others no time. */
uint64_t cu_kernel_length(CUfunction kernel, void **parameters);

/* The whole file, with a zero behind it; NULL when it cannot be read. The caller frees it. */
char *cu_read_file(const char *path);

/* Whether CUDA_MODULE_LOADING says that libraries are loaded before they are used. */
bool cu_loads_at_once(void);

/* Gives back the code of a context that ends; with the lock held. */
void cu_code_gone(CUcontext ctx);

#endif
