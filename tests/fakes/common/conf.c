/* Reads gpus.conf, again whenever the file has changed. */
#define _GNU_SOURCE
#include "fakegpu.h"
#include "ini.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Earlier readings are kept, since other threads may still look at them. */
struct reading {
	struct fg_conf conf;
	struct reading *earlier;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct reading *readings;
static const struct fg_conf *current;
static struct stat seen;

bool fg_path(char *out, size_t size, const char *file)
{
	const char *folder = getenv("FAKEGPU_DIR");
	if (!folder || !*folder)
		folder = "/run/fakegpu";
	int n = snprintf(out, size, "%s/%s", folder, file);
	return n > 0 && (size_t)n < size;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static const struct fg_conf *read_again(const char *path)
{
	struct reading *fresh = calloc(1, sizeof *fresh);
	if (!fresh || !fg_ini_read(path, &fresh->conf)) {
		free(fresh);
		return NULL;
	}
	fresh->earlier = readings;
	readings = fresh;
	return &fresh->conf;
}

/* A process that calls in a tight loop asks the file system once in a millisecond. Who changes
 * the file waits longer than that (fakegpu.py), so that no later call sees the old one. */
static bool asked_just_now(void)
{
	static struct timespec last;
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	long long since = (t.tv_sec - last.tv_sec) * 1000000000LL + t.tv_nsec - last.tv_nsec;
	if (last.tv_sec && since < 1000000)
		return true;
	last = t;
	return false;
}

const struct fg_conf *fg_conf_get(void)
{
	char path[256];
	struct stat now;
	pthread_mutex_lock(&lock);
	if (!current || !asked_just_now()) {
		if (!fg_path(path, sizeof path, "gpus.conf") || stat(path, &now) != 0) {
			current = NULL;
		} else if (!current || !same_file(&now, &seen)) {
			current = read_again(path);
			seen = now;
		}
	}
	const struct fg_conf *result = current;
	pthread_mutex_unlock(&lock);
	return result;
}

/* Length of a function's name without _ptsz, _ptds and _vN. */
static size_t bare(const char *function)
{
	size_t n = strlen(function);
	if (n > 5 && (!strcmp(function + n - 5, "_ptsz") || !strcmp(function + n - 5, "_ptds")))
		n -= 5;
	if (n > 3 && function[n - 3] == '_' && function[n - 2] == 'v')
		n -= 3;
	return n;
}

static const struct fg_fault *find(const struct fg_fault *list, unsigned n, const char *function)
{
	size_t length = bare(function);
	for (unsigned i = 0; i < n; i++)
		if (!strcmp(list[i].function, function) ||
		    (strlen(list[i].function) == length && !strncmp(list[i].function, function, length)))
			return &list[i];
	return NULL;
}

/* A byte for each call. */
static void count(void)
{
	char path[256];
	int fd = fg_path(path, sizeof path, "counted")
			 ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666)
			 : -1;
	if (fd < 0)
		return;
	if (write(fd, "1", 1) != 1)
		fprintf(stderr, "%s: cannot be written\n", path);
	close(fd);
}

int fg_fault(const struct fg_faults *faults, const char *function)
{
	if (find(&faults->counted, 1, function))
		count();
	const struct fg_fault *hang = find(faults->hang, faults->hangs, function);
	if (hang) {
		struct timespec t = {hang->value / 1000, hang->value % 1000 * 1000000L};
		while (nanosleep(&t, &t) != 0 && errno == EINTR)
			continue;
	}
	const struct fg_fault *code = find(faults->code, faults->codes, function);
	return code ? code->value : 0;
}

int fg_node(const struct fg_conf *conf, const char *name)
{
	if (!conf->nodes_required)
		return 0;
	char path[256];
	if (snprintf(path, sizeof path, "%s/%s", conf->device_dir, name) >= (int)sizeof path)
		return ENAMETOOLONG;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno;
	close(fd);
	return 0;
}

static bool before(const struct fg_gpu *a, const struct fg_gpu *b)
{
	if (a->domain != b->domain)
		return a->domain < b->domain;
	return a->bus != b->bus ? a->bus < b->bus : a->device < b->device;
}

unsigned fg_visible(const struct fg_conf *conf, unsigned keys[FG_MAX_GPUS])
{
	unsigned n = 0;
	for (unsigned key = 0; key < FG_MAX_GPUS; key++) {
		char node[32];
		snprintf(node, sizeof node, "nvidia%u", conf->gpu[key].minor);
		if (!conf->gpu[key].present || fg_node(conf, node) != 0)
			continue;
		unsigned at = n++;
		for (; at > 0 && before(&conf->gpu[key], &conf->gpu[keys[at - 1]]); at--)
			keys[at] = keys[at - 1];
		keys[at] = key;
	}
	return n;
}
