/* What a module has: functions, and variables without bytes that a program could reach. */
#include "code.h"

static CUresult look_up(const char *function, CUmodule module, const char *name,
			CUfunction *found, uint64_t *bytes)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!name)
		return CUDA_INVALID_VALUE;
	return module ? cu_module_used(module, found, bytes) : CUDA_INVALID_HANDLE;
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	uint64_t bytes;
	return out ? look_up(__func__, module, name, out, &bytes) : CUDA_INVALID_VALUE;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module,
				  const char *name)
{
	CUfunction function;
	uint64_t bytes;
	if (!address && !size)
		return CUDA_INVALID_VALUE;
	CUresult rc = look_up(__func__, module, name, &function, &bytes);
	if (!rc && address)
		*address = (uintptr_t)module;
	if (!rc && size)
		*size = bytes;
	return rc;
}

/* Its addresses have 32 bits, which no variable's fits. */
API CUresult cuModuleGetGlobal(unsigned *address, unsigned *size, CUmodule module,
			       const char *name)
{
	CUfunction function;
	uint64_t bytes;
	if (!address && !size)
		return CUDA_INVALID_VALUE;
	CUresult rc = look_up(__func__, module, name, &function, &bytes);
	return rc ? rc : CUDA_NOT_FOUND;
}
