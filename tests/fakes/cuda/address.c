/* Addresses of device memory and the record of what lies where. */
#define _GNU_SOURCE
#include "cuda.h"

#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Above this, memory has addresses but no bytes: a test allocates many GiB and copies little. */
#define BACKED_LIMIT (64 * MIB)

static void *root; /* of a balanced tree, ordered by address */

uint64_t cu_round(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

bool cu_backed(size_t bytes)
{
	return bytes <= BACKED_LIMIT;
}

void *cu_map(size_t bytes)
{
	int protection = cu_backed(bytes) ? PROT_READ | PROT_WRITE : PROT_NONE;
	char *p = mmap(NULL, bytes + CU_PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	size_t before = cu_round((uintptr_t)p, CU_PAGE) - (uintptr_t)p;
	if (before)
		munmap(p, before);
	munmap(p + before + bytes, CU_PAGE - before);
	/* One touched byte shall not cost the test machine 2 MiB. */
	madvise(p + before, bytes, MADV_NOHUGEPAGE);
	return p + before;
}

void cu_unmap(void *base, size_t bytes)
{
	munmap(base, bytes);
}

/* Allocations do not overlap, so "equal" can mean that one's base lies in the other. */
static int compare(const void *a, const void *b)
{
	const struct cu_alloc *x = a, *y = b;
	if (x->base + x->size <= y->base)
		return -1;
	return y->base + y->size <= x->base;
}

struct cu_alloc *cu_find(uintptr_t address)
{
	const struct cu_alloc point = {.base = address, .size = 1};
	struct cu_alloc **found = tfind(&point, &root, compare);
	return found ? *found : NULL;
}

bool cu_add(struct cu_alloc *alloc)
{
	if (!tsearch(alloc, &root, compare))
		return false;
	if (alloc->ctx) {
		alloc->next = alloc->ctx->allocs;
		if (alloc->next)
			alloc->next->previous = alloc;
		alloc->ctx->allocs = alloc;
	}
	return true;
}

void cu_remove(struct cu_alloc *alloc)
{
	tdelete(alloc, &root, compare);
	if (alloc->next)
		alloc->next->previous = alloc->previous;
	if (alloc->previous)
		alloc->previous->next = alloc->next;
	else if (alloc->ctx)
		alloc->ctx->allocs = alloc->next;
}
