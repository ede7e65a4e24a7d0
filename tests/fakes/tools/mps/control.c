/* nvidia-cuda-mps-control: with -d the daemon of a folder of pipes, else a line of standard input
 * for it. It starts a server for the first client, and another one when that has ended. */
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t server;
static int channel = -1; /* to the server */
static FILE *log_file;

static const char *folder(const char *variable, const char *fallback)
{
	const char *path = getenv(variable);
	return path ? path : fallback;
}

static FILE *open_in(const char *where, const char *name, const char *mode)
{
	char path[FG_MPS_LINE];
	snprintf(path, sizeof path, "%s/%s", where, name);
	return fopen(path, mode);
}

/* Only one daemon has a folder; the lock goes with the process. */
static bool lock_folder(void)
{
	FILE *lock = open_in(folder(FG_MPS_VARIABLE, FG_MPS_DEFAULT), "control_lock", "we");
	return lock && flock(fileno(lock), LOCK_EX | LOCK_NB) == 0;
}

static void start_server(void)
{
	int pair[2];
	char path[FG_MPS_LINE];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
	if (n < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		return;
	path[n] = 0;
	strcpy(strrchr(path, '/') + 1, "nvidia-cuda-mps-server");
	server = fork();
	if (server == 0) {
		dup2(pair[1], 0);
		execl(path, "nvidia-cuda-mps-server", (char *)NULL);
		_exit(127);
	}
	close(pair[1]);
	close(channel);
	channel = pair[0];
	fprintf(log_file, "new server %d\n", (int)server);
	fflush(log_file);
}

static bool server_lives(void)
{
	return server > 0 && kill(server, 0) == 0;
}

static void answer(int fd, const char *line)
{
	char text[FG_MPS_LINE] = "";
	if (strcmp(line, FG_MPS_CLIENT) == 0) {
		if (!server_lives())
			start_server();
		if (!fg_mps_hand(channel, fd))
			fg_mps_write(fd, FG_MPS_BUSY);
	} else if (strcmp(line, "get_server_list") == 0) {
		if (server_lives())
			snprintf(text, sizeof text, "%d", (int)server);
		fg_mps_write(fd, text);
	} else if (strncmp(line, "get_server_status ", 18) == 0 && server_lives()) {
		FILE *state = open_in(folder(FG_MPS_VARIABLE, FG_MPS_DEFAULT), "state", "re");
		if (state && !fgets(text, sizeof text, state))
			text[0] = 0;
		if (state)
			fclose(state);
		fg_mps_write(fd, text);
	} else if (strcmp(line, "quit") == 0) {
		if (server_lives())
			kill(server, SIGTERM);
		fg_mps_write(fd, "");
		exit(0);
	} else {
		fg_mps_write(fd, "unknown command");
	}
}

static void on_child(int number)
{
	int saved = errno, status;
	pid_t pid;
	(void)number;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == server)
			server = 0;
	errno = saved;
}

static int serve(void)
{
	struct sigaction ended = {.sa_handler = on_child, .sa_flags = SA_RESTART};
	char line[FG_MPS_LINE];
	sigaction(SIGCHLD, &ended, NULL);
	int door = fg_mps_listen("control");
	FILE *pid = open_in(folder(FG_MPS_VARIABLE, FG_MPS_DEFAULT), "nvidia-cuda-mps-control.pid",
			    "we");
	log_file = open_in(folder("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"), "control.log",
			   "ae");
	if (door < 0 || !pid || !log_file)
		return 1;
	fprintf(pid, "%d", (int)getpid());
	fclose(pid);
	fprintf(log_file, "control daemon of %s starts\n", folder("CUDA_VISIBLE_DEVICES", "all"));
	fflush(log_file);
	for (;;) {
		int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		if (fg_mps_read(fd, line))
			answer(fd, line);
		close(fd);
	}
}

/* Returns when the daemon listens. */
static int start(void)
{
	if (!lock_folder()) {
		puts("An instance of this daemon is already running");
		return 1;
	}
	pid_t child = fork();
	if (child == 0) {
		int null = open("/dev/null", O_RDWR);
		setsid();
		for (int fd = 0; fd < 3; fd++)
			dup2(null, fd);
		_exit(serve());
	}
	for (int i = 0; i < 200; i++) {
		int fd = fg_mps_connect("control");
		if (fd >= 0) {
			close(fd);
			return 0;
		}
		if (waitpid(child, NULL, WNOHANG) == child)
			break;
		usleep(10000);
	}
	puts("the daemon ended");
	return 1;
}

int main(int count, char **words)
{
	char line[FG_MPS_LINE];
	for (int i = 1; i < count; i++)
		if (strcmp(words[i], "-d") == 0)
			return start();
	while (fgets(line, sizeof line, stdin)) {
		int fd = fg_mps_connect("control");
		line[strcspn(line, "\n")] = 0;
		if (fd < 0) {
			puts("Cannot find MPS control daemon process");
			return 1;
		}
		if (fg_mps_write(fd, line) && fg_mps_read(fd, line) && *line)
			puts(line);
		close(fd);
	}
	return 0;
}
