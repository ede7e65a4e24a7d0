/* The primary context of each device, counted by its users. */
#include "context.h"

CUresult cu_primary_retain(CUcontext *out, CUdevice device)
{
	struct cu_device *d = cu_device(device);
	if (!d->primary)
		d->primary = cu_new_context(device, true);
	CUresult rc = d->primary ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
	if (!rc && !d->primary->active)
		rc = cu_activate(d->primary);
	if (!rc) {
		d->primary->references++;
		*out = d->primary;
	}
	return rc;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	if (!cu_device(device))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	rc = cu_primary_retain(out, device);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

CUresult cu_primary_release(CUdevice device)
{
	struct cu_device *d = cu_device(device);
	if (!d->primary || !d->primary->references)
		return CUDA_INVALID_CONTEXT;
	if (--d->primary->references == 0)
		cu_deactivate(d->primary);
	return CUDA_SUCCESS;
}

static CUresult release(const char *function, CUdevice device)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!cu_device(device))
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	rc = cu_primary_release(device);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return release(__func__, device);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return release(__func__, device);
}

/* References stay: a reset context comes back with the next retain. */
static CUresult reset(const char *function, CUdevice device)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	struct cu_device *d = cu_device(device);
	if (!d)
		return CUDA_INVALID_DEVICE;
	pthread_mutex_lock(&cu_lock);
	if (d->primary)
		cu_deactivate(d->primary);
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return reset(__func__, device);
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return reset(__func__, device);
}

static CUresult set_flags(const char *function, CUdevice device, unsigned flags)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	struct cu_device *d = cu_device(device);
	if (!d)
		return CUDA_INVALID_DEVICE;
	if (flags > 0xff)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	if (!d->primary)
		d->primary = cu_new_context(device, true);
	if (d->primary)
		d->primary->flags = flags;
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
	return set_flags(__func__, device, flags);
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	return set_flags(__func__, device, flags);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	struct cu_device *d = cu_device(device);
	if (!d)
		return CUDA_INVALID_DEVICE;
	if (!flags || !active)
		return CUDA_INVALID_VALUE;
	*flags = d->primary ? d->primary->flags : 0;
	*active = d->primary && d->primary->active;
	return CUDA_SUCCESS;
}
