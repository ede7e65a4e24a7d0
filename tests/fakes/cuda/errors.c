/* Names and texts of the driver's results. */
#include "cuda.h"

static const struct {
	CUresult code;
	const char *name, *text;
} results[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	{CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{CUDA_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
	{CUDA_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{CUDA_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	{CUDA_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CUDA_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult look_up(CUresult code, const char **out, bool name)
{
	if (!out)
		return CUDA_INVALID_VALUE;
	*out = NULL;
	for (unsigned i = 0; i < sizeof results / sizeof *results; i++)
		if (results[i].code == code)
			*out = name ? results[i].name : results[i].text;
	return *out ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

API CUresult cuGetErrorName(CUresult code, const char **out)
{
	return look_up(code, out, true);
}

API CUresult cuGetErrorString(CUresult code, const char **out)
{
	return look_up(code, out, false);
}
