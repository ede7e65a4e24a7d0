/* dma-bufs: descriptors with a file of their own that keep memory (measured: also when it is freed,
 * and NVML counts it to nobody then). Here one is an end of a pair of sockets; that all copies of it
 * are closed shows at the other end, at the next call of whoever made it. */
#define _GNU_SOURCE
#include "vmm.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DMA_BUF = 1, MOST = 64 };

static struct {
	int end, number; /* number from 1; 0: free */
} buffers[MOST];
static int count;

void cu_dma_bufs_look(void)
{
	if (!__atomic_load_n(&count, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&cu_lock);
	for (unsigned i = 0; i < MOST; i++) {
		struct pollfd p = {.fd = buffers[i].end, .events = POLLIN};
		if (!buffers[i].number || poll(&p, 1, 0) != 1 || !(p.revents & POLLHUP))
			continue;
		close(buffers[i].end);
		fg_object_drop(buffers[i].number - 1);
		buffers[i].number = 0;
		__atomic_sub_fetch(&count, 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&cu_lock);
}

/* With the lock held: the object that the memory at an address is, or becomes; -1: none. */
static int object_at(uintptr_t address)
{
	struct physical *m = cu_physical_at(address);
	struct cu_alloc *a = m ? NULL : cu_find(address);
	if (m)
		return cu_physical_share(m);
	if (!a || a->kind != CU_LARGE)
		return -1;
	if (!a->object)
		a->object = fg_object_make(cu_device(a->ctx->device)->gpu.key, a->charge) + 1;
	return a->object - 1;
}

static CUresult give(int number, int *out)
{
	int ends[2];
	unsigned i = 0;
	while (i < MOST && buffers[i].number)
		i++;
	if (number < 0 || i == MOST || !fg_object_hold(number, fg_object(number)))
		return CUDA_INVALID_VALUE;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
		fg_object_drop(number);
		return CUDA_UNKNOWN;
	}
	buffers[i].end = ends[0];
	buffers[i].number = number + 1;
	__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
	*out = ends[1];
	return CUDA_SUCCESS;
}

API CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr address, size_t size, int type,
					   unsigned long long flags)
{
	CUcontext ctx;
	CUresult rc = cu_current(__func__, &ctx);
	if (rc)
		return rc;
	if (!out || !size || type != DMA_BUF || flags)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&cu_lock);
	rc = give(object_at((uintptr_t)address), out);
	pthread_mutex_unlock(&cu_lock);
	return rc;
}
