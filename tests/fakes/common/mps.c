#define _GNU_SOURCE
#include "mps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int make(const char *name, struct sockaddr_un *address)
{
	const char *folder = getenv(FG_MPS_VARIABLE);
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	int n = snprintf(address->sun_path, sizeof address->sun_path, "%s/%s",
			 folder ? folder : FG_MPS_DEFAULT, name);
	if (n < 0 || (size_t)n >= sizeof address->sun_path)
		return -1;
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

int fg_mps_connect(const char *name)
{
	struct sockaddr_un address;
	int fd = make(name, &address);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
		return fd;
	close(fd);
	return -1;
}

int fg_mps_listen(const char *name)
{
	struct sockaddr_un address;
	int fd = make(name, &address);
	if (fd < 0)
		return -1;
	unlink(address.sun_path);
	if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
	    chmod(address.sun_path, 0666) == 0 && listen(fd, 64) == 0)
		return fd;
	close(fd);
	return -1;
}

bool fg_mps_hand(int channel, int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
				.cmsg_len = CMSG_LEN(sizeof(int))}};
	struct iovec byte = {.iov_base = "c", .iov_len = 1};
	struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof control.space};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	return sendmsg(channel, &message, MSG_NOSIGNAL) == 1;
}

int fg_mps_take(int channel)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	char text[1];
	struct iovec byte = {.iov_base = text, .iov_len = 1};
	struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof control.space};
	int fd = -1;
	if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

bool fg_mps_read(int fd, char line[FG_MPS_LINE])
{
	size_t n = 0;
	while (n < FG_MPS_LINE - 1 && read(fd, line + n, 1) == 1) {
		if (line[n] == '\n') {
			line[n] = 0;
			return true;
		}
		n++;
	}
	return false;
}

bool fg_mps_write(int fd, const char *line)
{
	char text[FG_MPS_LINE + 2];
	int n = snprintf(text, sizeof text, "%s\n", line);
	return send(fd, text, (size_t)n, MSG_NOSIGNAL) == n;
}
