#define _GNU_SOURCE
#include "mps.h"
#include "../common/mps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int line = -1; /* to the server */
static unsigned part = 100;
static _Atomic CUresult failed;

/* As it was when the driver was initialised: it is not read again. */
static unsigned read_part(void)
{
	const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	double value = text ? strtod(text, NULL) : 100;
	return value > 0 && value < 100 ? (value < 1 ? 1 : (unsigned)value) : 100;
}

CUresult cu_mps_join(void)
{
	char said[FG_MPS_LINE];
	int fd = fg_mps_connect("control");
	if (fd < 0)
		return CUDA_SUCCESS; /* on without, as the driver does */
	bool heard = fg_mps_write(fd, FG_MPS_CLIENT) && fg_mps_read(fd, said);
	if (heard && strcmp(said, FG_MPS_OK) == 0) {
		part = read_part();
		line = fd;
		return CUDA_SUCCESS;
	}
	close(fd);
	return heard ? CUDA_MPS_SERVER_NOT_READY : CUDA_MPS_CONNECTION_FAILED;
}

bool cu_mps(unsigned *percent)
{
	*percent = part;
	return line >= 0;
}

CUresult cu_mps_state(void)
{
	char byte;
	if (line < 0 || failed)
		return failed;
	ssize_t n = recv(line, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
	if (n == 0)
		failed = CUDA_MPS_RPC_FAILURE;
	else if (n > 0)
		failed = CUDA_ILLEGAL_ADDRESS; /* whoever's it was */
	return failed;
}

CUresult cu_mps_fault(CUresult code)
{
	if (line >= 0 && fg_mps_write(line, FG_MPS_FAULT))
		failed = code;
	return code;
}
