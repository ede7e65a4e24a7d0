#define _GNU_SOURCE
#include "small.h"

#include <stdlib.h>
#include <string.h>

enum { STEP = 512, STEPS = 4096 };

struct cu_block {
	char *base;
	unsigned used;
	int object; /* from 1 */
	bool taken[STEPS];
	struct cu_block *next;
};

/* First run of `n` free steps, or STEPS. */
static unsigned gap(const struct cu_block *block, unsigned n)
{
	unsigned run = 0;
	if (STEPS - block->used < n)
		return STEPS;
	for (unsigned i = 0; i < STEPS; i++) {
		run = block->taken[i] ? 0 : run + 1;
		if (run == n)
			return i + 1 - n;
	}
	return STEPS;
}

static struct cu_block **blocks_of(const struct cu_alloc *alloc)
{
	return alloc->kind == CU_SMALL_ARRAY ? &alloc->ctx->array_blocks : &alloc->ctx->blocks;
}

static CUresult new_block(struct cu_ctx *ctx, struct cu_block **list, struct cu_block **out)
{
	CUresult rc = cu_charge(ctx->device, CU_PAGE);
	if (rc)
		return rc;
	struct cu_block *block = calloc(1, sizeof *block);
	if (block)
		block->base = cu_map(CU_PAGE);
	if (!block || !block->base) {
		free(block);
		cu_uncharge(ctx->device, CU_PAGE);
		return CUDA_OUT_OF_MEMORY;
	}
	block->next = *list;
	*list = block;
	*out = block;
	return CUDA_SUCCESS;
}

CUresult cu_small_alloc(struct cu_alloc *alloc)
{
	struct cu_ctx *ctx = alloc->ctx;
	unsigned n = (unsigned)cu_round(alloc->size, STEP) / STEP, at = STEPS;
	struct cu_block *block = *blocks_of(alloc);
	for (; block; block = block->next) {
		at = gap(block, n);
		if (at < STEPS)
			break;
	}
	if (!block) {
		CUresult rc = new_block(ctx, blocks_of(alloc), &block);
		if (rc)
			return rc;
		at = 0;
	}
	memset(block->taken + at, 1, n);
	block->used += n;
	alloc->block = block;
	alloc->base = (uintptr_t)block->base + (uintptr_t)at * STEP;
	return CUDA_SUCCESS;
}

void cu_small_free(struct cu_alloc *alloc)
{
	struct cu_block *block = alloc->block;
	unsigned n = (unsigned)cu_round(alloc->size, STEP) / STEP;
	memset(block->taken + (alloc->base - (uintptr_t)block->base) / STEP, 0, n);
	block->used -= n;
	if (block->used)
		return;
	struct cu_block **link = blocks_of(alloc);
	while (*link != block)
		link = &(*link)->next;
	*link = block->next;
	cu_unmap(block->base, CU_PAGE);
	if (block->object)
		fg_object_drop(block->object - 1);
	else
		cu_uncharge(alloc->ctx->device, CU_PAGE);
	free(block);
}

int cu_small_share(struct cu_alloc *alloc, uintptr_t *base)
{
	struct cu_block *block = alloc->block;
	if (!block->object)
		block->object = fg_object_make(cu_device(alloc->ctx->device)->gpu.key, CU_PAGE) + 1;
	*base = (uintptr_t)block->base;
	return block->object - 1;
}
