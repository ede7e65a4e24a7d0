/* Virtual memory management: physical handles, address reservations, mappings. */
#define _GNU_SOURCE
#include "vmm.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { PINNED = 1, DEVICE_LOCATION = 1 };

/* CUmemAllocationProp. */
struct properties {
	int type, handle_types, location_type, location_id;
	void *win32;
	unsigned char flags[8];
};

struct reservation {
	uintptr_t base;
	size_t size;
	struct reservation *next;
};

struct mapping {
	uintptr_t base;
	size_t size;
	struct physical *memory;
	struct mapping *next;
};

static struct physical *physicals;
static struct reservation *reservations;
static struct mapping *mappings;

static CUresult usable(const struct properties *p)
{
	if (!p || p->type != PINNED)
		return CUDA_INVALID_VALUE;
	if (p->location_type == DEVICE_LOCATION && !cu_device(p->location_id))
		return CUDA_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!granularity || (option != 0 && option != 1))
		return CUDA_INVALID_VALUE;
	rc = usable(properties);
	if (!rc)
		*granularity = CU_PAGE;
	return rc;
}

CUhandle cu_physical_add(struct physical *m)
{
	m->references = 1;
	m->next = physicals;
	physicals = m;
	return (uintptr_t)m;
}

static CUresult create(struct physical *m)
{
	if (m->on_device) {
		CUresult rc = cu_charge(m->device, m->size);
		if (rc)
			return rc;
	}
	cu_physical_add(m);
	return CUDA_SUCCESS;
}

/* Needs no current context. */
API CUresult cuMemCreate(CUhandle *handle, size_t size, const void *properties,
			 unsigned long long flags)
{
	const struct properties *p = properties;
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!handle || !size || size % CU_PAGE || flags)
		return CUDA_INVALID_VALUE;
	rc = usable(p);
	if (rc)
		return rc;
	struct physical *m = calloc(1, sizeof *m);
	if (!m)
		return CUDA_OUT_OF_MEMORY;
	*m = (struct physical){.device = p->location_id, .size = size,
			       .on_device = p->location_type == DEVICE_LOCATION};
	pthread_mutex_lock(&cu_lock);
	rc = create(m);
	pthread_mutex_unlock(&cu_lock);
	if (rc)
		free(m);
	else
		*handle = (uintptr_t)m;
	return rc;
}

static void collect(struct physical *m)
{
	struct physical **link = &physicals;
	if (m->references || m->maps)
		return;
	while (*link != m)
		link = &(*link)->next;
	*link = m->next;
	if (m->object)
		fg_object_drop(m->object - 1);
	else if (m->on_device)
		cu_uncharge(m->device, m->size);
	cu_bound_end(m);
	free(m);
}

void cu_physical_unmap(struct physical *m)
{
	m->maps--;
	collect(m);
}

int cu_physical_share(struct physical *m)
{
	if (!m->object)
		m->object = fg_object_make(cu_device(m->device)->gpu.key, m->size) + 1;
	return m->object - 1;
}

struct physical *cu_physical_at(uintptr_t address)
{
	for (const struct mapping *m = mappings; m; m = m->next)
		if (address - m->base < m->size)
			return m->memory;
	return NULL;
}

struct physical *cu_physical(CUhandle handle)
{
	for (struct physical *m = physicals; m; m = m->next)
		if ((uintptr_t)m == handle)
			return m->references ? m : NULL;
	return NULL;
}

API CUresult cuMemRelease(CUhandle handle)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	struct physical *m = cu_physical(handle);
	if (m) {
		m->references--;
		collect(m);
	}
	pthread_mutex_unlock(&cu_lock);
	return m ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment,
				 CUdeviceptr address, unsigned long long flags)
{
	(void)alignment, (void)address;
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!out || !size || size % CU_PAGE || flags)
		return CUDA_INVALID_VALUE;
	struct reservation *r = calloc(1, sizeof *r);
	if (r)
		r->base = (uintptr_t)cu_map(size);
	if (!r || !r->base) {
		free(r);
		return CUDA_OUT_OF_MEMORY;
	}
	r->size = size;
	pthread_mutex_lock(&cu_lock);
	r->next = reservations;
	reservations = r;
	pthread_mutex_unlock(&cu_lock);
	*out = r->base;
	return CUDA_SUCCESS;
}

static bool overlaps(uintptr_t base, size_t size)
{
	for (const struct mapping *m = mappings; m; m = m->next)
		if (base < m->base + m->size && m->base < base + size)
			return true;
	return false;
}

static bool reserved(uintptr_t base, size_t size)
{
	for (const struct reservation *r = reservations; r; r = r->next)
		if (base >= r->base && size <= r->size && base - r->base <= r->size - size)
			return true;
	return false;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	rc = CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	struct reservation **link = &reservations;
	while (*link && (*link)->base != address)
		link = &(*link)->next;
	struct reservation *r = *link;
	if (r && r->size == size && !overlaps(r->base, size)) {
		*link = r->next;
		cu_unmap((void *)r->base, r->size);
		free(r);
		rc = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

static CUresult map(uintptr_t base, size_t size, struct physical *memory)
{
	if (!memory || size > memory->size || !reserved(base, size) || overlaps(base, size))
		return CUDA_INVALID_VALUE;
	if (size < memory->size)
		return CUDA_NOT_SUPPORTED;
	struct mapping *m = calloc(1, sizeof *m);
	if (!m)
		return CUDA_OUT_OF_MEMORY;
	*m = (struct mapping){base, size, memory, mappings};
	mappings = m;
	memory->maps++;
	return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUhandle handle,
		      unsigned long long flags)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!size || size % CU_PAGE || address % CU_PAGE || offset || flags)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	rc = map((uintptr_t)address, size, cu_physical(handle));
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

/* Whole mappings only; a reserved range with nothing mapped in it is no error. */
static CUresult unmap(uintptr_t base, size_t size)
{
	if (!reserved(base, size))
		return CUDA_INVALID_VALUE;
	for (const struct mapping *m = mappings; m; m = m->next)
		if (m->base < base + size && base < m->base + m->size &&
		    (m->base < base || m->base + m->size > base + size))
			return CUDA_INVALID_VALUE;
	for (struct mapping **link = &mappings; *link;) {
		struct mapping *m = *link;
		if (m->base < base || m->base + m->size > base + size) {
			link = &m->next;
			continue;
		}
		*link = m->next;
		cu_physical_unmap(m->memory);
		/* New memory mapped here must not show the old one's bytes. */
		madvise((void *)m->base, m->size, MADV_DONTNEED);
		free(m);
	}
	return CUDA_SUCCESS;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	pthread_mutex_lock(&cu_lock);
	rc = size ? unmap((uintptr_t)address, size) : CUDA_INVALID_VALUE;
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const void *access, size_t count)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!access || !count)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	bool covered = cu_vmm_covers((uintptr_t)address, size);
	pthread_mutex_unlock(&cu_lock);
	return covered ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

API CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address)
{
	CUresult rc = cu_enter(__func__);
	if (rc)
		return rc;
	if (!handle)
		return CUDA_INVALID_VALUE;
	rc = CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	struct physical *memory = cu_physical_at((uintptr_t)address);
	if (memory) {
		memory->references++;
		*handle = (uintptr_t)memory;
		rc = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&cu_lock);
	return rc;
}

/* Mappings may adjoin, so walk from one to the next. */
bool cu_vmm_covers(uintptr_t address, size_t bytes)
{
	while (bytes) {
		const struct mapping *m = mappings;
		while (m && address - m->base >= m->size)
			m = m->next;
		if (!m)
			return false;
		size_t rest = m->size - (address - m->base);
		if (rest >= bytes)
			return true;
		address += rest;
		bytes -= rest;
	}
	return true;
}
