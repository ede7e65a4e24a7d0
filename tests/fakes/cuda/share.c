/* Physical memory as a descriptor. As measured: each import makes a handle of its own; a descriptor
 * alone keeps the memory, which NVML then counts to nobody. */
#define _GNU_SOURCE
#include "vmm.h"

#include <stdlib.h>

enum { DESCRIPTOR = 1, NOT_PERMITTED = 800, DEVICE_LOCATION = 1, HOST_LOCATION = 2, PINNED = 1 };

struct properties {
	int type, handle_types, location_type, location_id;
	void *win32;
	unsigned char flags[8];
};

API CUresult cuMemExportToShareableHandle(void *out, CUhandle handle, int type,
					  unsigned long long flags)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || flags || type != DESCRIPTOR)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	struct physical *m = cu_physical(handle);
	int number = m && m->on_device ? cu_physical_share(m) : -1;
	int fd = number >= 0 ? fg_object_export(number) : -1;
	pthread_mutex_unlock(&cu_lock);
	if (fd < 0)
		return CUDA_INVALID_VALUE;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

/* With the lock held. */
static CUresult import(int fd, CUhandle *out)
{
	int number = fg_object_import(fd);
	struct physical *m = calloc(1, sizeof *m);
	if (!m || number < 0 || !fg_object_hold(number, fg_object(number))) {
		free(m);
		return CUDA_INVALID_VALUE;
	}
	*m = (struct physical){.on_device = true, .object = number + 1};
	for (unsigned d = 0; d < cu_device_count(); d++) {
		uint64_t bytes = fg_object_bytes(number, cu_device((CUdevice)d)->gpu.key);
		if (bytes) {
			m->device = (CUdevice)d;
			m->size = bytes;
		}
	}
	*out = cu_physical_add(m);
	return CUDA_SUCCESS;
}

API CUresult cuMemImportFromShareableHandle(CUhandle *out, void *shareable, int type)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || type != DESCRIPTOR)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	rc = import((int)(intptr_t)shareable, out);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(struct properties *out, CUhandle handle)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	const struct physical *m = cu_physical(handle);
	rc = out && m && !m->group ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
	if (!rc)
		*out = (struct properties){.type = PINNED, .location_id = m->device,
					   .location_type = m->on_device ? DEVICE_LOCATION : HOST_LOCATION};
	pthread_mutex_unlock(&cu_lock);
	return rc;
}
