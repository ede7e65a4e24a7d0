/* What a module has: functions, and variables without bytes that a program could reach. Where code
 * comes from, and when it is loaded. */
#define _GNU_SOURCE
#include "code.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUresult look_up(const char *function, CUmodule module, const char *name,
			CUfunction *found, uint64_t *bytes)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!name)
		return CUDA_INVALID_VALUE;
	return module ? cu_module_used(module, name, found, bytes) : CUDA_INVALID_HANDLE;
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

char *cu_read_file(const char *path)
{
	enum { MOST = 1 << 20 };
	FILE *f = path ? fopen(path, "re") : NULL;
	char *text = f ? calloc(1, MOST + 1) : NULL;
	if (text && !fread(text, 1, MOST, f)) {
		free(text);
		text = NULL;
	}
	if (f)
		fclose(f);
	return text;
}

bool cu_loads_at_once(void)
{
	const char *loading = getenv("CUDA_MODULE_LOADING");
	return loading && !strcmp(loading, "EAGER");
}

API CUresult cuModuleGetLoadingMode(int *mode)
{
	enum { EAGER = 1, LAZY };
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!mode)
		return CUDA_INVALID_VALUE;
	*mode = cu_loads_at_once() ? EAGER : LAZY;
	return CUDA_SUCCESS;
}
