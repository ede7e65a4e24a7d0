/* Code that is loaded when it is first used in a context: what the driver takes for it shows only
 * afterwards, and there is no way back. So it is charged, over the limit if need be, and refused
 * all the same; and once the share is over its limit by more than a block nothing more is loaded.
 * What a library's image says of its variables (image.h) is reserved beforehand, and refused then.
 *
 * Programs ask for the same functions again and again (PyTorch at every launch), so what was loaded
 * once is remembered, and costs no look at the driver's accounts any more. */
#ifndef AP_CUDA_USE_H
#define AP_CUDA_USE_H

#include "context.h"

struct ap_use {
    struct ap_process *process;
    CUcontext context;  /* the current one */
    struct ap_gpu *gpu; /* its */
    uint64_t key, unloads;
    uint64_t before;    /* overhead when it began */
    bool loaded;
    struct ap_record brings; /* into `brought`, once a library's variables have come; key 0: none */
    struct ap_growth growth; /* if so */
};

/* A library was loaded, and will bring `bytes` of variables with its first use in each context. */
void ap_use_note(struct ap_process *process, CUlibrary library, uint64_t bytes);
void ap_use_forget(struct ap_process *process, CUlibrary library);

/* Whether more than a block is charged over the GPU's limit, also after a look; it is counted as a
 * refusal. Less than that is no more than a call's rounding. */
bool ap_use_is_over(struct ap_process *process, struct ap_gpu *gpu);

/* Begins the use of `handle`, or of what has this name in it (NULL: of all of it), in the current
 * context. CUDA_SUCCESS: go on, and end with ap_use_finish. Else the error to return. */
CUresult ap_use_begin(struct ap_use *use, const void *handle, const char *name);

/* The same for a library, and for a kernel of one. */
CUresult ap_use_begin_library(struct ap_use *use, CUlibrary library);
CUresult ap_use_begin_kernel(struct ap_use *use, CUkernel kernel);

/* With the driver's result; what to return in its place. */
CUresult ap_use_finish(struct ap_use *use, CUresult result);

#endif
