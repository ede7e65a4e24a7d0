/* Launches: a kernel does nothing, is counted, takes what memory it needs, and, on a card that
 * executes in time, its time. */
#define _GNU_SOURCE
#include "launch.h"
#include "timeline.h"

/* CUlaunchConfig. */
struct config {
	unsigned gx, gy, gz, bx, by, bz, shared;
	CUstream stream;
	const void *attributes;
	unsigned attribute_count;
};

_Static_assert(sizeof(struct config) == 56, "as in the driver");

CUresult cu_launch(const char *function, CUfunction kernel, uint64_t blocks, uint64_t threads,
		   CUstream stream, void **parameters)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!kernel)
		return CUDA_INVALID_HANDLE;
	if (!blocks || !threads || threads > 1024)
		return CUDA_INVALID_VALUE;
	struct cu_work work = {.length = cu_kernel_length(kernel, parameters)};
	if (cu_capture_work(stream, CU_NODE_KERNEL, &work, &rc))
		return rc;
	rc = cu_code_used(ctx, kernel);
	if (rc)
		return rc;
	fg_count_launch(cu_device(ctx->device)->gpu.key);
	cu_time_submit(ctx, stream, work.length);
	return CUDA_SUCCESS;
}

#define SIZE (uint64_t)gx *gy *gz, (uint64_t)bx *by *bz
#define DIMENSIONS unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz

#define LAUNCH(name)                                                                        \
	API CUresult name(CUfunction kernel, DIMENSIONS, unsigned shared, CUstream stream,  \
			  void **parameters, void **extra)                                  \
	{                                                                                   \
		(void)shared, (void)extra;                                                  \
		return cu_launch(__func__, kernel, SIZE, stream, parameters);               \
	}

#define LAUNCH_EX(name)                                                                     \
	API CUresult name(const struct config *c, CUfunction kernel, void **parameters,     \
			  void **extra)                                                     \
	{                                                                                   \
		(void)extra;                                                                \
		return c ? cu_launch(__func__, kernel, (uint64_t)c->gx * c->gy * c->gz,     \
				     (uint64_t)c->bx * c->by * c->bz, c->stream, parameters) \
			 : CUDA_INVALID_VALUE;                                              \
	}

#define LAUNCH_COOPERATIVE(name)                                                            \
	API CUresult name(CUfunction kernel, DIMENSIONS, unsigned shared, CUstream stream,  \
			  void **parameters)                                                \
	{                                                                                   \
		(void)shared;                                                               \
		return cu_launch(__func__, kernel, SIZE, stream, parameters);               \
	}

LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)
LAUNCH_EX(cuLaunchKernelEx)
LAUNCH_EX(cuLaunchKernelEx_ptsz)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz)

/* CUDA_LAUNCH_PARAMS. */
struct one_launch {
	CUfunction kernel;
	unsigned gx, gy, gz, bx, by, bz, shared;
	CUstream stream;
	void **parameters;
};

_Static_assert(sizeof(struct one_launch) == 56, "as in the driver");

API CUresult cuLaunchCooperativeKernelMultiDevice(const struct one_launch *list, unsigned count,
						  unsigned flags)
{
	CUresult rc = list && count && flags < 4 ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
	for (unsigned i = 0; !rc && i < count; i++)
		rc = cu_launch(__func__, list[i].kernel, (uint64_t)list[i].gx * list[i].gy * list[i].gz,
			       (uint64_t)list[i].bx * list[i].by * list[i].bz, list[i].stream,
			       list[i].parameters);
	return rc;
}
