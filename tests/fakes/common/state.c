/* The accounts of all processes, in one file that they all map.
 *
 * A process is alive as long as the kernel holds the lock on its slot's byte. The lock belongs
 * to an open file description that only the process's mapping of the file keeps: it goes with
 * exit, exec and SIGKILL, a forked child does not inherit it (MADV_DONTFORK), and no closing of
 * descriptors touches it. PIDs play no part, so that PID namespaces may differ. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WHOLE FG_WHOLE_BYTE
#define SLOT_BYTE(i) FG_SLOT_BYTE(i)

static pthread_mutex_t claiming = PTHREAD_MUTEX_INITIALIZER;
static struct shared *own_map;  /* absent from a forked child: do not follow it there */
static struct fg_slot *own;
static ino_t own_file;
static const char *alive;       /* a page that the kernel wipes in a forked child */

bool fg_set_lock(int fd, int command, short type, off_t byte)
{
	struct flock f = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	int rc;
	do
		rc = fcntl(fd, command, &f);
	while (rc != 0 && errno == EINTR);
	return rc == 0;
}

static bool is_locked(int fd, unsigned slot)
{
	struct flock f = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SLOT_BYTE(slot), .l_len = 1};
	return fcntl(fd, F_OFD_GETLK, &f) == 0 && f.l_type != F_UNLCK;
}

/* Explicitly, since a child forked meanwhile has a copy of the descriptor. */
void fg_leave(int fd)
{
	fg_set_lock(fd, F_OFD_SETLK, F_UNLCK, WHOLE);
	close(fd);
}

static bool prepare(int fd)
{
	struct stat st;
	if (fstat(fd, &st) != 0)
		return false;
	if (st.st_size == 0 && !own) {
		const struct fg_header h = {.magic = FG_MAGIC, .version = FG_VERSION,
					    .header_size = FG_HEADER_SIZE, .slot_size = FG_SLOT_SIZE,
					    .slot_count = FG_SLOTS, .max_gpus = FG_MAX_GPUS};
		/* Any user's processes share one card, whatever the first one's umask was. */
		return fchmod(fd, 0666) == 0 && ftruncate(fd, FG_FILE_SIZE) == 0 &&
		       pwrite(fd, &h, sizeof h, 0) == (ssize_t)sizeof h;
	}
	/* A file in place of the one that this process has its account in is another machine's. */
	return st.st_size == FG_FILE_SIZE && (!own || st.st_ino == own_file);
}

/* Enters the critical section and makes the file if need be. Returns a descriptor or -1. */
int fg_enter(void)
{
	char path[256];
	if (!fg_path(path, sizeof path, "state"))
		return -1;
	/* O_CREAT only where it is needed: in a sticky folder it fails on another user's file. */
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return -1;
	if (!fg_set_lock(fd, F_OFD_SETLKW, F_WRLCK, WHOLE)) {
		close(fd);
		return -1;
	}
	if (prepare(fd))
		return fd;
	fg_leave(fd);
	return -1;
}

static struct shared *map(int fd)
{
	struct shared *s = mmap(NULL, FG_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (s == MAP_FAILED)
		return NULL;
	if (s->header.magic == FG_MAGIC && s->header.version == FG_VERSION)
		return s;
	munmap(s, FG_FILE_SIZE);
	return NULL;
}

/* As the real driver, which frees a process's memory after its mappings are gone. */
static bool lingers(struct fg_slot *slot)
{
	const struct fg_conf *conf = fg_conf_get();
	struct timespec t;
	if (slot->object || !conf || !conf->dead_ms)
		return false;
	clock_gettime(CLOCK_MONOTONIC, &t);
	uint64_t now = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
	if (!slot->died)
		slot->died = now;
	return now - slot->died < conf->dead_ms;
}

void fg_sweep(int fd, struct shared *s)
{
	for (unsigned i = 0; i < s->header.high_water; i++)
		if (s->slot[i].used && !is_locked(fd, i) && !lingers(&s->slot[i])) {
			memset(&s->slot[i], 0, sizeof s->slot[i]);
			fg_object_forget(s, i);
			fg_queues_forget(s, i);
		}
}

static uint64_t sum(const struct shared *s, unsigned key)
{
	uint64_t total = 0;
	for (unsigned i = 0; i < s->header.high_water; i++)
		total += __atomic_load_n(&s->slot[i].bytes[key], __ATOMIC_RELAXED);
	return total;
}

struct shared *fg_own_map(unsigned *index)
{
	*index = own ? (unsigned)(own - own_map->slot) : 0;
	return own && !fg_forked() ? own_map : NULL;
}

static uint64_t start_time(void)
{
	char text[1024];
	unsigned long long start = 0;
	FILE *f = fopen("/proc/self/stat", "re");
	if (!f)
		return 0;
	size_t n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = 0;
	/* The name may hold anything, so count from the last parenthesis. */
	const char *p = strrchr(text, ')');
	if (p)
		sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d"
			      " %*d %*d %*d %llu", &start);
	return start;
}

static void fill(struct fg_slot *slot)
{
	memset(slot, 0, sizeof *slot);
	slot->pid = getpid();
	slot->pidns = fg_pidns();
	slot->start = start_time();
	snprintf(slot->name, sizeof slot->name, "%s", program_invocation_short_name);
	slot->used = 1;
}

unsigned fg_free_slot(struct shared *s)
{
	for (unsigned i = 0; i < s->header.high_water; i++)
		if (!s->slot[i].used)
			return i;
	return s->header.high_water;
}

/* With the whole locked: a slot whose byte this process holds through `keeper` alone. */
static bool take(int fd, int keeper, struct shared *s)
{
	fg_sweep(fd, s);
	unsigned i = fg_free_slot(s);
	if (i >= FG_SLOTS || !fg_set_lock(keeper, F_OFD_SETLK, F_WRLCK, SLOT_BYTE(i)))
		return false;
	fill(&s->slot[i]);
	if (i == s->header.high_water)
		s->header.high_water++;
	own_map = s;
	own = &s->slot[i];
	return true;
}

static bool mark_alive(void)
{
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return false;
	if (madvise(page, 4096, MADV_WIPEONFORK) != 0) {
		munmap(page, 4096);
		return false;
	}
	*page = 1;
	__atomic_store_n(&alive, page, __ATOMIC_RELEASE);
	return true;
}

static enum fg_result claim(int fd)
{
	char path[256];
	int keeper = fg_path(path, sizeof path, "state") ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (keeper < 0)
		return FG_BROKEN;
	struct shared *s = map(keeper);
	struct stat st;
	bool ok = s && madvise(s, FG_FILE_SIZE, MADV_DONTFORK) == 0 && fstat(keeper, &st) == 0 &&
		  mark_alive() && take(fd, keeper, s);
	if (ok)
		own_file = st.st_ino;
	if (s && !ok)
		munmap(s, FG_FILE_SIZE);
	close(keeper);
	return ok ? FG_OK : FG_BROKEN;
}

enum fg_result fg_claim(void)
{
	pthread_mutex_lock(&claiming);
	enum fg_result result = FG_OK;
	if (!own) {
		int fd = fg_enter();
		result = fd < 0 ? FG_BROKEN : claim(fd);
		if (fd >= 0)
			fg_leave(fd);
		if (result != FG_OK)
			own = NULL;
	}
	pthread_mutex_unlock(&claiming);
	return result;
}

bool fg_forked(void)
{
	const char *page = __atomic_load_n(&alive, __ATOMIC_ACQUIRE);
	return page && !*page;
}

enum fg_result fg_charge(unsigned key, uint64_t bytes, uint64_t capacity)
{
	int fd = own ? fg_enter() : -1;
	if (fd < 0)
		return FG_BROKEN;
	struct shared *s = own_map;
	uint64_t used = sum(s, key);
	if (bytes > capacity || used > capacity - bytes) {
		fg_sweep(fd, s);
		used = sum(s, key);
	}
	bool fits = bytes <= capacity && used <= capacity - bytes;
	if (fits)
		__atomic_add_fetch(&own->bytes[key], bytes, __ATOMIC_RELAXED);
	else
		s->header.refused[key]++;
	fg_leave(fd);
	return fits ? FG_OK : FG_REFUSED;
}

void fg_uncharge(unsigned key, uint64_t bytes)
{
	__atomic_sub_fetch(&own->bytes[key], bytes, __ATOMIC_RELAXED);
}

void fg_count_context(unsigned key, int by)
{
	__atomic_add_fetch(&own->contexts[key], (uint32_t)by, __ATOMIC_RELAXED);
}

void fg_count_launch(unsigned key)
{
	__atomic_add_fetch(&own->launches[key], 1, __ATOMIC_RELAXED);
}

/* A view of the accounts for one question. Without the right to write it still answers, but
 * leaves dead slots in place and skips them. */
struct view {
	int fd;
	bool locked;
	struct shared *s;
};

static bool look(struct view *v)
{
	char path[256];
	struct stat st;
	v->fd = fg_enter();
	v->locked = v->fd >= 0;
	if (!v->locked)
		v->fd = fg_path(path, sizeof path, "state") ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (v->fd < 0)
		return false;
	void *p = MAP_FAILED;
	if (v->locked && own && !fg_forked())
		p = own_map;
	else if (fstat(v->fd, &st) == 0 && st.st_size == FG_FILE_SIZE)
		p = mmap(NULL, FG_FILE_SIZE, PROT_READ | (v->locked ? PROT_WRITE : 0), MAP_SHARED, v->fd, 0);
	v->s = p == MAP_FAILED ? NULL : p;
	if (v->s && v->locked)
		fg_sweep(v->fd, v->s);
	return true;
}

static void look_away(struct view *v)
{
	if (v->s && v->s != own_map)
		munmap(v->s, FG_FILE_SIZE);
	if (v->locked)
		fg_leave(v->fd);
	else
		close(v->fd);
}

static const struct fg_slot *live(const struct view *v, unsigned i)
{
	const struct fg_slot *slot = &v->s->slot[i];
	if (!slot->used || (!v->locked && !is_locked(v->fd, i)))
		return NULL;
	return slot;
}

uint64_t fg_used(unsigned key)
{
	struct view v;
	uint64_t total = 0;
	if (!look(&v))
		return 0;
	for (unsigned i = 0; v.s && i < v.s->header.high_water; i++)
		if (live(&v, i))
			total += __atomic_load_n(&v.s->slot[i].bytes[key], __ATOMIC_RELAXED);
	look_away(&v);
	return total;
}

/* Slots copied out, so that /proc is read without the lock. */
static unsigned snapshot(unsigned key, struct fg_slot *out)
{
	struct view v;
	unsigned n = 0;
	if (!look(&v))
		return 0;
	for (unsigned i = 0; v.s && i < v.s->header.high_water; i++) {
		const struct fg_slot *slot = live(&v, i);
		uint64_t more = slot ? fg_object_owned(v.s, i, key) : 0;
		if (!slot || slot->object || !(slot->bytes[key] || slot->contexts[key] || more))
			continue;
		out[n] = *slot;
		out[n++].bytes[key] += more;
	}
	look_away(&v);
	return n;
}

/* `foreign`: also those whom the caller cannot name, by a number that means nothing to it. */
static unsigned collect(unsigned key, struct fg_process *out, unsigned room, bool foreign)
{
	struct fg_slot *slots = malloc(FG_SLOTS * sizeof *slots);
	if (!slots)
		return 0;
	unsigned found = 0, n = snapshot(key, slots);
	uint64_t here = fg_pidns();
	const struct fg_conf *conf = fg_conf_get();
	for (unsigned i = 0; i < n; i++) {
		bool plain = slots[i].pidns == here || (conf && conf->raw_pids);
		int pid = plain ? slots[i].pid : fg_translate(slots[i].pidns, slots[i].pid);
		if (!pid && foreign)
			pid = FG_FOREIGN_PID + slots[i].pid;
		if (!pid)
			continue;
		if (found < room)
			out[found] = (struct fg_process){pid, slots[i].bytes[key], slots[i].launches[key]};
		found++;
	}
	free(slots);
	return found;
}

unsigned fg_processes(unsigned key, struct fg_process *out, unsigned room)
{
	return collect(key, out, room, false);
}

unsigned fg_all_processes(unsigned key, struct fg_process *out, unsigned room)
{
	return collect(key, out, room, true);
}
