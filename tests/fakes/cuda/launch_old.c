/* Launches as before CUDA 4: a function keeps its parameters and its blocks' shape. */
#define _GNU_SOURCE
#include "launch.h"

#include <string.h>

enum { PARAMETER_BYTES = 4096 };

/* Of the function that was prepared last; programs here prepare one at a time. */
static struct {
	CUfunction kernel;
	uint64_t threads;
	unsigned char parameters[PARAMETER_BYTES];
} prepared;

static CUresult prepare(const char *function, CUfunction kernel)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!kernel)
		return CUDA_INVALID_HANDLE;
	if (prepared.kernel != kernel)
		prepared.threads = 0;
	prepared.kernel = kernel;
	return CUDA_SUCCESS;
}

API CUresult cuFuncSetBlockShape(CUfunction kernel, int x, int y, int z)
{
	CUresult rc = prepare(__func__, kernel);
	if (!rc && (x < 1 || y < 1 || z < 1))
		rc = CUDA_INVALID_VALUE;
	if (!rc)
		prepared.threads = (uint64_t)x * (uint64_t)y * (uint64_t)z;
	return rc;
}

static CUresult set(const char *function, CUfunction kernel, int offset, const void *bytes,
		    unsigned count)
{
	CUresult rc = prepare(function, kernel);
	if (!rc && (offset < 0 || offset > PARAMETER_BYTES - (int)count || count > PARAMETER_BYTES))
		rc = CUDA_INVALID_VALUE;
	if (!rc)
		memcpy(prepared.parameters + offset, bytes, count);
	return rc;
}

API CUresult cuParamSetv(CUfunction kernel, int offset, const void *bytes, unsigned count)
{
	return bytes ? set(__func__, kernel, offset, bytes, count) : CUDA_INVALID_VALUE;
}

API CUresult cuParamSeti(CUfunction kernel, int offset, unsigned value)
{
	return set(__func__, kernel, offset, &value, sizeof value);
}

API CUresult cuParamSetf(CUfunction kernel, int offset, float value)
{
	return set(__func__, kernel, offset, &value, sizeof value);
}

API CUresult cuParamSetSize(CUfunction kernel, unsigned bytes)
{
	CUresult rc = prepare(__func__, kernel);
	return !rc && bytes > PARAMETER_BYTES ? CUDA_INVALID_VALUE : rc;
}

static CUresult launch(const char *function, CUfunction kernel, int width, int height,
		       CUstream stream)
{
	void *first = prepared.parameters;
	CUresult rc = prepare(function, kernel);
	if (!rc && (width < 1 || height < 1))
		rc = CUDA_INVALID_VALUE;
	return rc ? rc : cu_launch(function, kernel, (uint64_t)width * (uint64_t)height,
				   prepared.threads, stream, &first);
}

API CUresult cuLaunch(CUfunction kernel)
{
	return launch(__func__, kernel, 1, 1, NULL);
}

API CUresult cuLaunchGrid(CUfunction kernel, int width, int height)
{
	return launch(__func__, kernel, width, height, NULL);
}

API CUresult cuLaunchGridAsync(CUfunction kernel, int width, int height, CUstream stream)
{
	return launch(__func__, kernel, width, height, stream);
}
