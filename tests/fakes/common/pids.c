/* PIDs across PID namespaces, from what /proc shows to the caller. */
#define _GNU_SOURCE
#include "fakegpu.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static uint64_t namespace_of(const char *process)
{
	char path[300];
	struct stat st;
	snprintf(path, sizeof path, "/proc/%s/ns/pid", process);
	return stat(path, &st) == 0 ? st.st_ino : 0;
}

uint64_t fg_pidns(void)
{
	return namespace_of("self");
}

/* The last number of NSpid: the PID in the process's own namespace. 0 when unknown. */
static int innermost_pid(const char *process)
{
	char path[300], line[256];
	int pid = 0;
	snprintf(path, sizeof path, "/proc/%s/status", process);
	FILE *f = fopen(path, "re");
	if (!f)
		return 0;
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, "NSpid:", 6)) {
			const char *last = strrchr(line, '\t');
			pid = last ? atoi(last) : 0;
			break;
		}
	fclose(f);
	return pid;
}

int fg_translate(uint64_t pidns, int pid)
{
	DIR *proc = opendir("/proc");
	int found = 0;
	if (!proc || !pidns) {
		if (proc)
			closedir(proc);
		return 0;
	}
	for (struct dirent *e; !found && (e = readdir(proc));)
		if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && namespace_of(e->d_name) == pidns &&
		    innermost_pid(e->d_name) == pid)
			found = atoi(e->d_name);
	closedir(proc);
	return found;
}
