/* nvidia-cuda-mps-server: has a connection to each client, and tells all of them when one has a
 * fatal fault. After that it takes no new ones until the last of the old has gone. It ends with the
 * control daemon. */
#define _GNU_SOURCE
#include "fakegpu.h"
#include "mps.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS = 60, CHANNEL = 0 };

static struct pollfd polled[CLIENTS + 1]; /* the last is the channel */
static unsigned clients;
static bool faulty;

/* The server's own memory, on the card that the daemon was started for. */
static void take_memory(void)
{
	const struct fg_conf *conf = fg_conf_get();
	const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
	if (!conf || !wanted || fg_claim() != FG_OK)
		return;
	for (unsigned i = 0; i < FG_MAX_GPUS; i++)
		if (conf->gpu[i].present && strcasecmp(conf->gpu[i].uuid, wanted) == 0)
			(void)fg_charge(i, FG_MPS_SERVER_MIB * MIB, conf->gpu[i].memory);
}

static void say(const char *text)
{
	char path[FG_MPS_LINE];
	const char *folder = getenv("CUDA_MPS_LOG_DIRECTORY");
	snprintf(path, sizeof path, "%s/server.log", folder ? folder : "/var/log/nvidia-mps");
	FILE *log = fopen(path, "ae");
	if (!log)
		return;
	fprintf(log, "%s\n", text);
	fclose(log);
}

/* The control daemon hands clients on, and takes the server with it when it ends. */
static void welcome(void)
{
	int fd = fg_mps_take(CHANNEL);
	if (fd < 0)
		return;
	if (faulty || clients == CLIENTS) {
		fg_mps_write(fd, FG_MPS_BUSY);
		close(fd);
		return;
	}
	fg_mps_write(fd, FG_MPS_OK);
	polled[clients++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

/* The control daemon reads it, to answer get_server_status. */
static void set_state(const char *state)
{
	char path[FG_MPS_LINE];
	snprintf(path, sizeof path, "%s/state", getenv(FG_MPS_VARIABLE));
	FILE *file = fopen(path, "we");
	if (!file)
		return;
	fputs(state, file);
	fclose(file);
}

static void fault(void)
{
	faulty = true;
	set_state("FAULT");
	say("a client had a fatal fault: no new clients until all have ended");
	for (unsigned i = 0; i < clients; i++)
		fg_mps_write(polled[i].fd, FG_MPS_FAULT);
}

static void hear(unsigned *i)
{
	char line[FG_MPS_LINE];
	if (fg_mps_read(polled[*i].fd, line)) {
		if (strcmp(line, FG_MPS_FAULT) == 0)
			fault();
		return;
	}
	close(polled[*i].fd);
	polled[(*i)--] = polled[--clients];
	if (clients || !faulty)
		return;
	faulty = false;
	set_state("ACTIVE");
}

int main(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	set_state("ACTIVE");
	take_memory();
	say("server starts");
	for (;;) {
		struct pollfd *last = &polled[clients];
		*last = (struct pollfd){.fd = CHANNEL, .events = POLLIN};
		if (poll(polled, clients + 1, -1) < 0)
			continue;
		bool knocks = last->revents != 0;
		for (unsigned i = 0; i < clients; i++)
			if (polled[i].revents)
				hear(&i);
		if (knocks)
			welcome();
	}
}
