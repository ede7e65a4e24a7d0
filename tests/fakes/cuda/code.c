/* Modules and libraries. Their variables take memory: the sum of all `.b8 name[bytes]` in a PTX
 * image. A module takes it when it is loaded, or when something of it is asked for if its text says
 * "// lazy"; a library when a context uses it first. */
#define _GNU_SOURCE
#include "code.h"

#include <stdlib.h>
#include <string.h>

struct cu_image {
	uint64_t bytes;
	bool uses_heap, lazy;
};

/* A module's function, or a library's kernel. */
struct cu_function {
	struct cu_module *module;
	struct cu_library *library;
	bool spins;
};

/* Its parts, as far as they differ: `spin`, and whatever else it has. */
enum { OTHER, SPIN, KINDS };

/* Code in a context: a module, or a library as one context sees it. */
struct cu_module {
	struct cu_image image;
	struct cu_ctx *ctx;
	struct cu_library *library;
	struct cu_function function[KINDS];
	bool paid;
	struct cu_module *next;
};

struct cu_library {
	struct cu_image image;
	struct cu_function kernel[KINDS];
	struct cu_library *next;
};

static struct cu_module *modules;
static struct cu_library *libraries;

static struct cu_image look_at(const void *data)
{
	static const char variable[] = ".b8 ";
	struct cu_image image = {0};
	const char *text = data;
	if (strncmp(text, ".version", 8) != 0)
		return image;
	image.uses_heap = strstr(text, "malloc") != NULL;
	image.lazy = strstr(text, "// lazy") != NULL;
	for (const char *at = text; (at = strstr(at, variable)); at += sizeof variable - 1) {
		const char *bracket = strchr(at, '[');
		if (bracket)
			image.bytes += strtoull(bracket + 1, NULL, 10);
	}
	image.bytes = cu_round(image.bytes, CU_PAGE);
	return image;
}

/* With the lock held. */
static CUresult load(struct cu_module **out, struct cu_image image, CUcontext ctx,
		     struct cu_library *library)
{
	struct cu_module *module = calloc(1, sizeof *module);
	if (!module)
		return CUDA_OUT_OF_MEMORY;
	CUresult rc = image.lazy ? CUDA_SUCCESS : cu_charge(ctx->device, image.bytes);
	if (rc) {
		free(module);
		return rc;
	}
	*module = (struct cu_module){.image = image, .ctx = ctx, .library = library, .next = modules};
	module->function[OTHER] = (struct cu_function){.module = module};
	module->function[SPIN] = (struct cu_function){.module = module, .spins = true};
	module->paid = !image.lazy;
	modules = module;
	*out = module;
	return CUDA_SUCCESS;
}

static void unload(struct cu_module **link)
{
	struct cu_module *module = *link;
	*link = module->next;
	cu_uncharge(module->ctx->device, module->paid ? module->image.bytes : 0);
	free(module);
}

void cu_code_gone(CUcontext ctx)
{
	for (struct cu_module **link = &modules; *link;)
		if ((*link)->ctx == ctx)
			unload(link);
		else
			link = &(*link)->next;
}

/* With the lock held: the library as the context sees it, loaded if need be. */
static CUresult in_context(struct cu_module **out, struct cu_library *library, CUcontext ctx)
{
	for (struct cu_module *m = modules; m; m = m->next)
		if (m->library == library && m->ctx == ctx) {
			*out = m;
			return CUDA_SUCCESS;
		}
	return load(out, library->image, ctx, library);
}

/* A test may launch what is no kernel, for the count: that takes nothing. */
static bool known(CUfunction kernel)
{
	for (struct cu_module *m = modules; m; m = m->next)
		if (kernel == &m->function[OTHER] || kernel == &m->function[SPIN])
			return true;
	for (struct cu_library *l = libraries; l; l = l->next)
		if (kernel == &l->kernel[OTHER] || kernel == &l->kernel[SPIN])
			return true;
	return false;
}

CUresult cu_code_used(CUcontext ctx, CUfunction kernel)
{
	struct cu_module *module = NULL;
	CUresult rc = CUDA_SUCCESS;
	pthread_mutex_lock(&cu_lock);
	if (known(kernel) && kernel->library)
		rc = in_context(&module, kernel->library, ctx);
	else if (known(kernel))
		module = kernel->module;
	if (!rc && module && module->image.uses_heap && !ctx->heap_taken) {
		uint64_t heap = cu_round(ctx->heap, CU_PAGE) + CU_PAGE;
		rc = cu_charge(ctx->device, heap);
		ctx->heap_taken = !rc;
		ctx->extra += rc ? 0 : heap;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

static unsigned kind(const char *name)
{
	return strcmp(name, "spin") ? OTHER : SPIN;
}

uint64_t cu_kernel_length(CUfunction kernel, void **parameters)
{
	pthread_mutex_lock(&cu_lock);
	bool spins = parameters && known(kernel) && kernel->spins;
	pthread_mutex_unlock(&cu_lock);
	uint64_t length = 0;
	if (spins)
		memcpy(&length, parameters[0], sizeof length);
	return length;
}

static CUresult load_module(const char *function, CUmodule *out, const void *data)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!out || !data)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	rc = load(out, look_at(data), ctx, NULL);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return load_module(__func__, out, image);
}

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, void *options,
				void **values)
{
	(void)count, (void)options, (void)values;
	return load_module(__func__, out, image);
}

API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	return load_module(__func__, out, image);
}

API CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	char *text = cu_read_file(path);
	CUresult rc = text ? load_module(__func__, out, text) : CUDA_FILE_NOT_FOUND;
	free(text);
	return rc;
}

API CUresult cuModuleUnload(CUmodule module)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	struct cu_module **link = &modules;
	while (*link && *link != module)
		link = &(*link)->next;
	if (*link)
		unload(link);
	else
		rc = CUDA_INVALID_HANDLE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

CUresult cu_module_used(CUmodule module, const char *name, CUfunction *function, uint64_t *bytes)
{
	CUresult rc = CUDA_SUCCESS;
	pthread_mutex_lock(&cu_lock);
	if (!module->paid)
		rc = cu_charge(module->ctx->device, module->image.bytes);
	module->paid = module->paid || !rc;
	*function = &module->function[kind(name)];
	*bytes = module->image.bytes;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuFuncLoad(CUfunction function)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	return !rc && !function ? CUDA_INVALID_HANDLE : rc;
}

static CUresult load_library(const char *function, CUlibrary *out, const char *code)
{
	CUcontext ctx;
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	if (!out || !code)
		return CUDA_INVALID_VALUE;
	struct cu_library *library = calloc(1, sizeof *library);
	if (!library)
		return CUDA_OUT_OF_MEMORY;
	library->image = look_at(code);
	library->kernel[OTHER] = (struct cu_function){.library = library};
	library->kernel[SPIN] = (struct cu_function){.library = library, .spins = true};
	if (cu_loads_at_once() && cu_current(function, &ctx) == CUDA_SUCCESS) {
		struct cu_module *module;
		pthread_mutex_lock(&cu_lock);
		rc = in_context(&module, library, ctx);
		pthread_mutex_unlock(&cu_lock);
	}
	if (rc) {
		free(library);
		return rc;
	}
	pthread_mutex_lock(&cu_lock);
	library->next = libraries;
	libraries = library;
	pthread_mutex_unlock(&cu_lock);
	*out = library;
	return CUDA_SUCCESS;
}

API CUresult cuLibraryLoadData(CUlibrary *out, const void *code, int *options, void **values,
			       unsigned count, int *library_options, void **library_values,
			       unsigned library_count)
{
	(void)options, (void)values, (void)count;
	(void)library_options, (void)library_values, (void)library_count;
	return load_library(__func__, out, code);
}

API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *options, void **values,
				   unsigned count, int *library_options, void **library_values,
				   unsigned library_count)
{
	(void)options, (void)values, (void)count;
	(void)library_options, (void)library_values, (void)library_count;
	char *text = cu_read_file(path);
	CUresult rc = text ? load_library(__func__, out, text) : CUDA_FILE_NOT_FOUND;
	free(text);
	return rc;
}

API CUresult cuLibraryUnload(CUlibrary library)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!library)
		return CUDA_INVALID_HANDLE;
	pthread_mutex_lock(&cu_lock);
	for (struct cu_module **link = &modules; *link;)
		if ((*link)->library == library)
			unload(link);
		else
			link = &(*link)->next;
	struct cu_library **place = &libraries;
	while (*place && *place != library)
		place = &(*place)->next;
	if (*place)
		*place = library->next;
	pthread_mutex_unlock(&cu_lock);
	free(library);
	return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUfunction *out, CUlibrary library, const char *name)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || !name)
		return CUDA_INVALID_VALUE;
	if (!library)
		return CUDA_INVALID_HANDLE;
	*out = &library->kernel[kind(name)];
	return CUDA_SUCCESS;
}

API CUresult cuKernelGetLibrary(CUlibrary *out, CUfunction kernel)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || !kernel || !kernel->library)
		return CUDA_INVALID_VALUE;
	*out = kernel->library;
	return CUDA_SUCCESS;
}

static CUresult use_library(const char *function, CUmodule *out, CUlibrary library)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!library)
		return CUDA_INVALID_HANDLE;
	pthread_mutex_lock(&cu_lock);
	rc = in_context(out, library, ctx);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	return out ? use_library(__func__, out, library) : CUDA_INVALID_VALUE;
}

API CUresult cuKernelGetFunction(CUfunction *out, CUfunction kernel)
{
	struct cu_module *module;
	if (!out || !kernel || !kernel->library)
		return CUDA_INVALID_VALUE;
	CUresult rc = use_library(__func__, &module, kernel->library);
	if (!rc)
		*out = &module->function[kernel->spins ? SPIN : OTHER];
	return rc;
}

/* The variables have no bytes that a program could reach here. */
static CUresult variable(const char *function, CUdeviceptr *address, size_t *bytes,
			 CUlibrary library, const char *name)
{
	struct cu_module *module;
	if (!name || (!address && !bytes))
		return CUDA_INVALID_VALUE;
	CUresult rc = use_library(function, &module, library);
	if (!rc && address)
		*address = (uintptr_t)module;
	if (!rc && bytes)
		*bytes = module->image.bytes;
	return rc;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
				const char *name)
{
	return variable(__func__, address, bytes, library, name);
}

API CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
				 const char *name)
{
	return variable(__func__, address, bytes, library, name);
}
