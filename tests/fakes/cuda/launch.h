#ifndef FAKE_CUDA_LAUNCH_H
#define FAKE_CUDA_LAUNCH_H

#include "code.h"

/* Launches so many blocks of so many threads, or puts that into the stream's graph. */
CUresult cu_launch(const char *function, CUfunction kernel, uint64_t blocks, uint64_t threads,
		   CUstream stream, void **parameters);

#endif
