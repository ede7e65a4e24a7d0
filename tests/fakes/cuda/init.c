/* cuInit, the devices and what they are. */
#define _GNU_SOURCE
#include "cuda.h"
#include "mps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static bool initialised;
static unsigned count;
static struct cu_device devices[FG_MAX_GPUS];

static CUresult start(void)
{
	unsigned keys[FG_MAX_GPUS], n;
	const struct fg_conf *conf = fg_conf_get();
	if (!conf || fg_node(conf, "nvidiactl") != 0)
		return CUDA_NO_DEVICE;
	CUresult rc = fg_fault(&conf->faults, "cuInit");
	if (!rc && fg_node(conf, "nvidia-uvm") != 0)
		rc = CUDA_UNKNOWN;
	if (!rc)
		rc = cu_select(conf, keys, &n);
	if (rc)
		return rc;
	if (fg_claim() != FG_OK)
		return CUDA_UNKNOWN;
	rc = cu_mps_join();
	if (rc)
		return rc;
	for (unsigned i = 0; i < n; i++) {
		devices[i].gpu = conf->gpu[keys[i]];
		devices[i].capacity = devices[i].gpu.memory - devices[i].gpu.reserved;
	}
	count = n;
	__atomic_store_n(&initialised, true, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

API CUresult cuInit(unsigned flags)
{
	if (fg_forked())
		return CUDA_NOT_INITIALIZED;
	if (flags)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&starting);
	CUresult rc = initialised ? CUDA_SUCCESS : start();
	pthread_mutex_unlock(&starting);
	return rc;
}

CUresult cu_enter(const char *function)
{
	if (!__atomic_load_n(&initialised, __ATOMIC_ACQUIRE) || fg_forked())
		return CUDA_NOT_INITIALIZED;
	cu_dma_bufs_look();
	CUresult rc = cu_mps_state();
	if (rc)
		return rc;
	const struct fg_conf *conf = fg_conf_get();
	rc = conf ? fg_fault(&conf->faults, function) : CUDA_SUCCESS;
	return rc == CUDA_ILLEGAL_ADDRESS ? cu_mps_fault(rc) : rc;
}

struct cu_device *cu_device(CUdevice ordinal)
{
	return ordinal >= 0 && (unsigned)ordinal < count ? &devices[ordinal] : NULL;
}

unsigned cu_device_count(void)
{
	return count;
}

CUresult cu_charge(CUdevice ordinal, uint64_t bytes)
{
	const struct cu_device *d = &devices[ordinal];
	const struct fg_conf *conf = fg_conf_get();
	if (conf && (!conf->gpu[d->gpu.key].present || conf->gpu[d->gpu.key].lost))
		return CUDA_UNKNOWN;
	switch (fg_charge(d->gpu.key, bytes, d->capacity)) {
	case FG_OK:
		return CUDA_SUCCESS;
	case FG_REFUSED:
		return CUDA_OUT_OF_MEMORY;
	default:
		return CUDA_UNKNOWN;
	}
}

void cu_uncharge(CUdevice ordinal, uint64_t bytes)
{
	fg_uncharge(devices[ordinal].gpu.key, bytes);
}

API CUresult cuDriverGetVersion(int *version)
{
	const struct fg_conf *conf = fg_conf_get();
	if (!version)
		return CUDA_INVALID_VALUE;
	*version = conf ? (int)conf->cuda : 13000;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *out)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	*out = (int)count;
	return CUDA_SUCCESS;
}

/* A device call: initialised, a valid ordinal, somewhere to put the answer. */
static CUresult ask(const char *function, CUdevice ordinal, const void *out)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!out)
		return CUDA_INVALID_VALUE;
	return cu_device(ordinal) ? CUDA_SUCCESS : CUDA_INVALID_DEVICE;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult rc = ask(__func__, ordinal, device);
	if (!rc)
		*device = ordinal;
	return rc;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	CUresult rc = ask(__func__, device, name);
	if (rc)
		return rc;
	if (length <= 0)
		return CUDA_INVALID_VALUE;
	snprintf(name, (size_t)length, "%s", devices[device].gpu.name);
	return CUDA_SUCCESS;
}

static CUresult uuid(const char *function, CUuuid *out, CUdevice device)
{
	CUresult rc = ask(function, device, out);
	if (rc)
		return rc;
	const char *p = devices[device].gpu.uuid + strlen("GPU-");
	for (unsigned i = 0; i < sizeof out->bytes; i++) {
		unsigned byte = 0;
		p += *p == '-';
		sscanf(p, "%2x", &byte);
		p += 2;
		out->bytes[i] = (unsigned char)byte;
	}
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device)
{
	return uuid(__func__, out, device);
}

API CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device)
{
	return uuid(__func__, out, device);
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult rc = ask(__func__, device, bytes);
	if (!rc)
		*bytes = devices[device].capacity;
	return rc;
}

/* The first version counts in 32 bits. */
API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	CUresult rc = ask(__func__, device, bytes);
	if (!rc)
		*bytes = devices[device].capacity > UINT32_MAX ? UINT32_MAX : (unsigned)devices[device].capacity;
	return rc;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	CUresult rc = ask(__func__, device, major && minor ? major : NULL);
	if (rc)
		return rc;
	*major = (int)devices[device].gpu.cc_major;
	*minor = (int)devices[device].gpu.cc_minor;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
	char id[16];
	CUresult rc = ask(__func__, device, text);
	if (rc)
		return rc;
	const struct fg_gpu *g = &devices[device].gpu;
	int n = snprintf(id, sizeof id, "%04x:%02x:%02x.0", g->domain & 0xffff, g->bus & 0xff,
			 g->device & 0xff);
	if (length <= n)
		return CUDA_INVALID_VALUE;
	strcpy(text, id);
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
	unsigned domain = 0, bus, slot;
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!device || !text)
		return CUDA_INVALID_VALUE;
	if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(text, "%x:%x", &bus, &slot) != 2)
			return CUDA_INVALID_VALUE;
	}
	for (unsigned i = 0; i < count; i++) {
		const struct fg_gpu *g = &devices[i].gpu;
		if (g->domain == domain && g->bus == bus && g->device == slot) {
			*device = (CUdevice)i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_INVALID_DEVICE;
}
