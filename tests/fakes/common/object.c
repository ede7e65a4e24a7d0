/* Memory that outlives its maker. It has a slot of its own, locked for reading by a descriptor of
 * each holder; exported descriptors are such descriptors, too. Whom NVML says has the memory was
 * measured: one holder, the maker as long as it has it, then another; nobody while descriptors
 * alone hold it. */
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
	int fd;
	unsigned times;
} held[FG_SLOTS];

static int locked_descriptor(int number)
{
	char path[256];
	int fd = fg_path(path, sizeof path, "state") ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd >= 0 && fg_set_lock(fd, F_OFD_SETLK, F_RDLCK, FG_SLOT_BYTE(number)))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static void add_holder(struct fg_slot *slot, unsigned own)
{
	for (unsigned i = 0; i < FG_HOLDERS; i++)
		if (!slot->holders[i]) {
			slot->holders[i] = (uint16_t)(own + 1);
			return;
		}
}

static void remove_holder(struct fg_slot *slot, unsigned own)
{
	unsigned kept = 0;
	for (unsigned i = 0; i < FG_HOLDERS; i++)
		if (slot->holders[i] != own + 1)
			slot->holders[kept++] = slot->holders[i];
	memset(slot->holders + kept, 0, (FG_HOLDERS - kept) * sizeof *slot->holders);
}

void fg_object_forget(struct shared *s, unsigned own)
{
	for (unsigned i = 0; i < s->header.high_water; i++)
		if (s->slot[i].object)
			remove_holder(&s->slot[i], own);
}

uint64_t fg_object_owned(const struct shared *s, unsigned own, unsigned key)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < s->header.high_water; i++)
		if (s->slot[i].object && s->slot[i].holders[0] == own + 1)
			sum += s->slot[i].bytes[key];
	return sum;
}

static int place(struct shared *s, unsigned own, unsigned key, uint64_t bytes)
{
	static uint64_t made;
	unsigned i = fg_free_slot(s);
	int fd = i < FG_SLOTS ? locked_descriptor((int)i) : -1;
	if (fd < 0)
		return -1;
	struct fg_slot *slot = &s->slot[i];
	memset(slot, 0, sizeof *slot);
	slot->object = (uint64_t)getpid() << 32 | ++made;
	slot->used = 1;
	slot->holders[0] = (uint16_t)(own + 1);
	slot->bytes[key] = bytes;
	s->slot[own].bytes[key] -= bytes;
	if (i == s->header.high_water)
		s->header.high_water++;
	held[i].fd = fd;
	held[i].times = 1;
	return (int)i;
}

int fg_object_make(unsigned key, uint64_t bytes)
{
	unsigned own;
	struct shared *s = fg_own_map(&own);
	int fd = s ? fg_enter() : -1;
	if (fd < 0)
		return -1;
	fg_sweep(fd, s);
	int number = place(s, own, key, bytes);
	fg_leave(fd);
	return number;
}

bool fg_object_hold(int number, uint64_t object)
{
	unsigned own;
	struct shared *s = fg_own_map(&own);
	int fd = s && number >= 0 && number < FG_SLOTS ? fg_enter() : -1;
	if (fd < 0)
		return false;
	fg_sweep(fd, s);
	struct fg_slot *slot = &s->slot[number];
	bool there = slot->used && object && slot->object == object;
	if (there && !held[number].times++) {
		held[number].fd = locked_descriptor(number);
		add_holder(slot, own);
	}
	fg_leave(fd);
	return there;
}

void fg_object_drop(int number)
{
	unsigned own;
	struct shared *s = fg_own_map(&own);
	int fd = s && held[number].times ? fg_enter() : -1;
	if (fd < 0)
		return;
	if (!--held[number].times) {
		remove_holder(&s->slot[number], own);
		close(held[number].fd);
		fg_sweep(fd, s);
	}
	fg_leave(fd);
}

uint64_t fg_object(int number)
{
	unsigned own;
	struct shared *s = fg_own_map(&own);
	return s ? s->slot[number].object : 0;
}

uint64_t fg_object_bytes(int number, unsigned key)
{
	unsigned own;
	struct shared *s = fg_own_map(&own);
	return s ? s->slot[number].bytes[key] : 0;
}

int fg_object_export(int number)
{
	return locked_descriptor(number);
}

/* The kernel tells which bytes a descriptor's file has locked. */
int fg_object_import(int fd)
{
	char path[64], line[256];
	int number = -1;
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
	FILE *info = fopen(path, "re");
	while (info && fgets(line, sizeof line, info)) {
		char *last = strrchr(line, ' ');
		long long byte = !strncmp(line, "lock:", 5) && last ? atoll(last) : 0;
		if (byte > FG_WHOLE_BYTE && byte <= FG_SLOT_BYTE(FG_SLOTS - 1))
			number = (int)(byte - FG_SLOT_BYTE(0));
	}
	if (info)
		fclose(info);
	return number;
}
