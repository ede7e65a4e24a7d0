/* Green contexts: each holds the device's primary context and takes a little besides; what is
 * allocated under one is the primary's. */
#include "context.h"
#include "graph.h"

#include <stdlib.h>

#define PRICE (4 * MIB)

enum { SM_RESOURCE = 1, DEFAULT_STREAM = 1 };

struct cu_green {
	CUdevice device;
	CUcontext ctx; /* of cuCtxFromGreenCtx */
};

struct cu_description {
	int type;
};

API CUresult cuDeviceGetDevResource(CUdevice device, int *resource, int type)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!resource || type != SM_RESOURCE)
		return CUDA_INVALID_VALUE;
	if (!cu_device(device))
		return CUDA_INVALID_DEVICE;
	*resource = type;
	return CUDA_SUCCESS;
}

API CUresult cuDevResourceGenerateDesc(struct cu_description **out, const int *resources,
				       unsigned count)
{
	static struct cu_description only = {SM_RESOURCE};
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || !resources || count != 1 || *resources != SM_RESOURCE)
		return CUDA_INVALID_VALUE;
	*out = &only;
	return CUDA_SUCCESS;
}

/* With the lock held. */
static CUresult make(CUgreenCtx *out, CUdevice device)
{
	CUcontext primary;
	CUgreenCtx green = calloc(1, sizeof *green);
	CUresult rc = green ? cu_primary_retain(&primary, device) : CUDA_OUT_OF_MEMORY;
	if (rc) {
		free(green);
		return rc;
	}
	rc = cu_charge(device, PRICE);
	if (rc) {
		cu_primary_release(device);
		free(green);
		return rc;
	}
	green->device = device;
	*out = green;
	return CUDA_SUCCESS;
}

API CUresult cuGreenCtxCreate(CUgreenCtx *out, const struct cu_description *description,
			      CUdevice device, unsigned flags)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || !description || flags != DEFAULT_STREAM)
		return CUDA_INVALID_VALUE;
	if (!cu_device(device))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	rc = make(out, device);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!green)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	if (green->ctx)
		green->ctx->active = false;
	cu_uncharge(green->device, PRICE);
	cu_primary_release(green->device);
	pthread_mutex_unlock(&cu_lock);
	free(green);
	return CUDA_SUCCESS;
}

API CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || !green)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	if (!green->ctx)
		green->ctx = cu_new_context(green->device, false);
	if (green->ctx) {
		green->ctx->parent = cu_device(green->device)->primary;
		green->ctx->active = true;
		*out = green->ctx;
	} else {
		rc = CUDA_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

/* Its stream is the primary context's here. */
API CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned flags, int priority)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	return green ? cu_new_stream(cu_device(green->device)->primary, out, flags, priority)
		     : CUDA_INVALID_VALUE;
}
