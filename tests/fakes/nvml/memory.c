/* A card's memory and the processes that hold it. */
#define _GNU_SOURCE
#include "nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first version counts what the driver reserves as used. */
API nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, nvmlMemory *memory)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!memory)
		return NVML_INVALID_ARGUMENT;
	uint64_t used = fg_used(gpu->key) + gpu->reserved;
	*memory = (nvmlMemory){.total = gpu->memory, .free = gpu->memory - used, .used = used};
	return NVML_SUCCESS;
}

API nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, nvmlMemory_v2 *memory)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, __func__, &gpu);
	if (rc)
		return rc;
	if (!memory)
		return NVML_INVALID_ARGUMENT;
	if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2, 2))
		return NVML_FUNCTION_NOT_FOUND; /* as driver 580 says it */
	uint64_t used = fg_used(gpu->key);
	memory->total = gpu->memory;
	memory->reserved = gpu->reserved;
	memory->used = used;
	memory->free = gpu->memory - gpu->reserved - used;
	return NVML_SUCCESS;
}

static nvmlReturn room(unsigned *count, const void *out, unsigned found)
{
	unsigned have = *count;
	*count = found;
	if (found > have)
		return NVML_INSUFFICIENT_SIZE;
	return found && !out ? NVML_INVALID_ARGUMENT : NVML_SUCCESS;
}

/* The live processes of a card, or an error; the caller frees `list`. `work`: 0 for all of them, else
 * none where the card's processes do no such work. */
static nvmlReturn processes(nvmlDevice device, const char *function, unsigned work,
			    struct fg_process **list, unsigned *found)
{
	const struct fg_gpu *gpu;
	nvmlReturn rc = nv_device(device, function, &gpu);
	if (rc)
		return rc;
	*list = malloc(FG_SLOTS * sizeof **list);
	if (!*list)
		return NVML_UNKNOWN;
	*found = !work || (gpu->work & work) ? fg_processes(gpu->key, *list, FG_SLOTS) : 0;
	return NVML_SUCCESS;
}

static nvmlReturn list_v1(nvmlDevice device, const char *function, unsigned work, unsigned *count,
			  nvmlProcess_v1 *out)
{
	unsigned found;
	struct fg_process *list;
	if (!count)
		return NVML_INVALID_ARGUMENT;
	nvmlReturn rc = processes(device, function, work, &list, &found);
	if (rc)
		return rc;
	rc = room(count, out, found);
	for (unsigned i = 0; !rc && i < found; i++)
		out[i] = (nvmlProcess_v1){(unsigned)list[i].pid, list[i].bytes};
	free(list);
	return rc;
}

static nvmlReturn list_v2(nvmlDevice device, const char *function, unsigned work, unsigned *count,
			  nvmlProcess_v2 *out)
{
	unsigned found;
	struct fg_process *list;
	if (!count)
		return NVML_INVALID_ARGUMENT;
	nvmlReturn rc = processes(device, function, work, &list, &found);
	if (rc)
		return rc;
	rc = room(count, out, found);
	for (unsigned i = 0; !rc && i < found; i++)
		out[i] = (nvmlProcess_v2){(unsigned)list[i].pid, list[i].bytes, NVML_NO_INSTANCE,
					  NVML_NO_INSTANCE};
	free(list);
	return rc;
}

#define LIST(name, form, entry, work)                                               \
	API nvmlReturn name(nvmlDevice device, unsigned *count, entry *out)         \
	{                                                                           \
		return form(device, __func__, work, count, out);                    \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, list_v1, nvmlProcess_v1, 0)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, list_v2, nvmlProcess_v2, 0)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, list_v2, nvmlProcess_v2, 0)
LIST(nvmlDeviceGetGraphicsRunningProcesses, list_v1, nvmlProcess_v1, FG_GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, list_v2, nvmlProcess_v2, FG_GRAPHICS)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, list_v2, nvmlProcess_v2, FG_GRAPHICS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, list_v1, nvmlProcess_v1, FG_MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, list_v2, nvmlProcess_v2, FG_MPS)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, list_v2, nvmlProcess_v2, FG_MPS)

API nvmlReturn nvmlDeviceGetRunningProcessDetailList(nvmlDevice device, nvmlProcessDetailList *out)
{
	unsigned found;
	struct fg_process *list;
	if (!out)
		return NVML_INVALID_ARGUMENT;
	if (out->version != NVML_STRUCT_VERSION(nvmlProcessDetailList, 1))
		return NVML_VERSION_MISMATCH;
	static const unsigned works[] = {0, FG_GRAPHICS, FG_MPS}; /* by mode */
	if (out->mode >= sizeof works / sizeof *works)
		return NVML_INVALID_ARGUMENT; /* also for all, which driver 580 has no answer to */
	nvmlReturn rc = processes(device, __func__, works[out->mode], &list, &found);
	if (rc)
		return rc;
	rc = room(&out->count, out->processes, found);
	for (unsigned i = 0; !rc && i < found; i++)
		out->processes[i] = (nvmlProcessDetail){(unsigned)list[i].pid, list[i].bytes,
							NVML_NO_INSTANCE, NVML_NO_INSTANCE, 0};
	free(list);
	return rc;
}

/* The first argument of the process, cut to the caller's buffer. */
API nvmlReturn nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
	char path[64], text[1024];
	const struct fg_conf *conf;
	nvmlReturn rc = nv_driver(__func__, &conf);
	if (rc)
		return rc;
	if (!name || !length)
		return NVML_INVALID_ARGUMENT;
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == EACCES ? NVML_NO_PERMISSION : NVML_NOT_FOUND;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}
