/* Within the accounts: what state.c lends to object.c and card.c. */
#ifndef FAKEGPU_STATE_H
#define FAKEGPU_STATE_H

#include "card.h"

#include <sys/types.h>

/* Locked bytes lie past the end of the file: one for the whole, then one for each slot. */
#define FG_WHOLE_BYTE ((off_t)1 << 40)
#define FG_SLOT_BYTE(i) (FG_WHOLE_BYTE + 1 + (off_t)(i))

struct shared {
	struct fg_header header;
	uint8_t padding[FG_HEADER_SIZE - sizeof(struct fg_header)];
	struct fg_slot slot[FG_SLOTS];
	union {
		struct fg_card state;
		uint8_t space[FG_CARD_SIZE];
	} card[FG_MAX_GPUS];
};

_Static_assert(sizeof(struct shared) == FG_FILE_SIZE, "the mapping is the file");

bool fg_set_lock(int fd, int command, short type, off_t byte);

/* The critical section of all processes; a descriptor or -1. */
int fg_enter(void);
void fg_leave(int fd);

/* Within it. */
void fg_sweep(int fd, struct shared *s);
unsigned fg_free_slot(struct shared *s);

/* This process's mapping, with the number of its slot; NULL when it has none. */
struct shared *fg_own_map(unsigned *index);

/* A process is gone: it holds nothing any more, and its work does not go on. */
void fg_object_forget(struct shared *s, unsigned slot);
void fg_queues_forget(struct shared *s, unsigned slot);

/* Bytes of objects that NVML counts to the process in a slot. */
uint64_t fg_object_owned(const struct shared *s, unsigned slot, unsigned key);

#endif
