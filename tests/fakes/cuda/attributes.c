/* cuDeviceGetAttribute: a T4's values where the card's configuration has none. */
#include "cuda.h"
#include "mps.h"

enum { LAST_ATTRIBUTE = 150 };

static const struct {
	int attribute, value;
} constants[] = {
	{1, 1024},        /* threads per block */
	{2, 1024},        /* block, x */
	{3, 1024},        /* y */
	{4, 64},          /* z */
	{5, 2147483647},  /* grid, x */
	{6, 65535},       /* y */
	{7, 65535},       /* z */
	{8, 49152},       /* shared memory per block */
	{9, 65536},       /* constant memory */
	{10, 32},         /* warp */
	{11, 2147483647}, /* pitch */
	{12, 65536},      /* registers per block */
	{13, 1590000},    /* clock, kHz */
	{14, 512},        /* texture alignment */
	{15, 1},          /* copies overlap with work */
	{19, 1},          /* host memory can be mapped */
	{31, 1},          /* concurrent kernels */
	{32, 1},          /* ECC */
	{36, 5001000},    /* memory clock, kHz */
	{37, 256},        /* memory bus, bits */
	{38, 4194304},    /* level 2 cache */
	{39, 1024},       /* threads per multiprocessor */
	{40, 3},          /* copy engines */
	{41, 1},          /* unified addresses */
	{78, 1},          /* stream priorities */
	{81, 65536},      /* shared memory per multiprocessor */
	{82, 65536},      /* registers per multiprocessor */
	{83, 1},          /* managed memory */
	{89, 1},          /* concurrent managed access */
	{90, 1},          /* compute preemption */
	{97, 65536},      /* shared memory per block, opt-in */
	{102, 1},         /* virtual memory management */
	{103, 1},         /* handles as file descriptors */
	{115, 1},         /* memory pools */
};

static CUresult of_card(const struct fg_gpu *gpu, int attribute, int *value)
{
	unsigned percent;
	bool mps = cu_mps(&percent);
	switch (attribute) {
	case 16:
		*value = (int)((gpu->multiprocessors * percent + 99) / 100);
		return CUDA_SUCCESS;
	case 133:
		*value = mps;
		return CUDA_SUCCESS;
	case 33:
		*value = (int)gpu->bus;
		return CUDA_SUCCESS;
	case 34:
		*value = (int)gpu->device;
		return CUDA_SUCCESS;
	case 50:
		*value = (int)gpu->domain;
		return CUDA_SUCCESS;
	case 75:
		*value = (int)gpu->cc_major;
		return CUDA_SUCCESS;
	case 76:
		*value = (int)gpu->cc_minor;
		return CUDA_SUCCESS;
	default:
		return CUDA_INVALID_VALUE;
	}
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!value || attribute < 1 || attribute > LAST_ATTRIBUTE)
		return CUDA_INVALID_VALUE;
	const struct cu_device *d = cu_device(device);
	if (!d)
		return CUDA_INVALID_DEVICE;
	if (of_card(&d->gpu, attribute, value) == CUDA_SUCCESS)
		return CUDA_SUCCESS;
	*value = 0;
	for (unsigned i = 0; i < sizeof constants / sizeof *constants; i++)
		if (constants[i].attribute == attribute)
			*value = constants[i].value;
	return CUDA_SUCCESS;
}
