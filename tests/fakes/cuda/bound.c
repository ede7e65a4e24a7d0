/* Physical memory that arrays hold (sparse ones, and those with deferred mapping) and multicast
 * groups. It lives as long as it is mapped there, as the documentation has it. */
#define _GNU_SOURCE
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

enum { MAP = 1, UNMAP = 2 };

struct map_info {
	int resource_type;
	void *resource;
	int subresource_type;
	unsigned long long subresource[4];
	int operation, handle_type;
	unsigned long long handle, offset;
	unsigned devices, flags, reserved[2];
};

_Static_assert(sizeof(struct map_info) == 96, "as CUarrayMapInfo");

struct binding {
	const void *owner;
	unsigned long long place[5];
	struct physical *memory;
	struct binding *next;
};

static struct binding *bindings;

/* Each with the lock held; `place` NULL: all of the owner's. */
static void drop(const void *owner, const unsigned long long place[5])
{
	for (struct binding **link = &bindings; *link;) {
		struct binding *b = *link;
		if (b->owner != owner || (place && memcmp(b->place, place, sizeof b->place) != 0)) {
			link = &b->next;
			continue;
		}
		*link = b->next;
		cu_physical_unmap(b->memory);
		free(b);
		link = &bindings;
	}
}

void cu_bound_end(const void *owner)
{
	drop(owner, NULL);
}

static CUresult bind(const void *owner, const unsigned long long place[5], struct physical *memory)
{
	struct binding *b = memory ? calloc(1, sizeof *b) : NULL;
	if (!b)
		return CUDA_INVALID_VALUE;
	memory->maps++;
	drop(owner, place);
	b->owner = owner;
	memcpy(b->place, place, sizeof b->place);
	b->memory = memory;
	b->next = bindings;
	bindings = b;
	return CUDA_SUCCESS;
}

static CUresult map(const char *function, const struct map_info *list, unsigned count)
{
	CUcontext ctx;
	CUresult rc = cu_current(function, &ctx);
	if (rc)
		return rc;
	if (!list || !count)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	for (unsigned i = 0; !rc && i < count; i++) {
		unsigned long long place[5] = {(unsigned long long)list[i].subresource_type};
		memcpy(place + 1, list[i].subresource, sizeof list[i].subresource);
		if (list[i].operation == MAP)
			rc = bind(list[i].resource, place, cu_physical(list[i].handle));
		else
			drop(list[i].resource, place);
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuMemMapArrayAsync(const struct map_info *list, unsigned count, CUstream stream)
{
	(void)stream;
	return map(__func__, list, count);
}

API CUresult cuMemMapArrayAsync_ptsz(const struct map_info *list, unsigned count, CUstream stream)
{
	(void)stream;
	return map(__func__, list, count);
}

struct group_properties {
	unsigned devices;
	size_t size;
	unsigned long long handle_types, flags;
};

API CUresult cuMulticastCreate(CUhandle *out, const struct group_properties *properties)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || !properties || !properties->size || properties->size % CU_PAGE)
		return CUDA_INVALID_VALUE;
	struct physical *group = calloc(1, sizeof *group);
	if (!group)
		return CUDA_OUT_OF_MEMORY;
	group->size = properties->size;
	group->group = true;
	pthread_mutex_lock(&cu_lock);
	*out = cu_physical_add(group);
	pthread_mutex_unlock(&cu_lock);
	return CUDA_SUCCESS;
}

static CUresult bind_group(const char *function, CUhandle handle, size_t offset, CUhandle memory,
			   uintptr_t address)
{
	CUresult rc = cu_enter(function);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	struct physical *group = cu_physical(handle);
	struct physical *m = address ? cu_physical_at(address) : cu_physical(memory);
	unsigned long long place[5] = {offset, m ? (unsigned long long)m->device : 0};
	rc = group && group->group ? bind(group, place, m) : CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuMulticastBindMem(CUhandle group, size_t offset, CUhandle memory,
				size_t memory_offset, size_t size, unsigned long long flags)
{
	(void)memory_offset, (void)size, (void)flags;
	return bind_group(__func__, group, offset, memory, 0);
}

API CUresult cuMulticastBindAddr(CUhandle group, size_t offset, CUdeviceptr address, size_t size,
				 unsigned long long flags)
{
	(void)size, (void)flags;
	return bind_group(__func__, group, offset, 0, (uintptr_t)address);
}

API CUresult cuMulticastBindMem_v2(CUhandle group, CUdevice device, size_t offset, CUhandle memory,
				   size_t memory_offset, size_t size, unsigned long long flags)
{
	(void)device, (void)memory_offset, (void)size, (void)flags;
	return bind_group(__func__, group, offset, memory, 0);
}

API CUresult cuMulticastBindAddr_v2(CUhandle group, CUdevice device, size_t offset,
				    CUdeviceptr address, size_t size, unsigned long long flags)
{
	(void)device, (void)size, (void)flags;
	return bind_group(__func__, group, offset, 0, (uintptr_t)address);
}

API CUresult cuMulticastUnbind(CUhandle group, CUdevice device, size_t offset, size_t size)
{
	(void)size;
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	unsigned long long place[5] = {offset, (unsigned long long)device};
	pthread_mutex_lock(&cu_lock);
	struct physical *g = cu_physical(group);
	if (g && g->group)
		drop(g, place);
	pthread_mutex_unlock(&cu_lock);
	return g && g->group ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
