/* Two T4s on one machine have no way to each other's memory, unless PCIe gives them one: here none. */
#include "cuda.h"

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!can)
		return CUDA_INVALID_VALUE;
	if (!cu_device(device) || !cu_device(peer))
		return CUDA_INVALID_DEVICE;
	*can = 0;
	return CUDA_SUCCESS;
}
