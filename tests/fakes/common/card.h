/* A card that executes in time (gpus.conf: `executes = yes`): what its contexts have queued, in
 * the file of the accounts, behind them. Nobody runs beside the processes: whoever calls the
 * driver first brings the card up to the present (advance.c).
 *
 * A context's work runs in the order in which it was submitted, whatever the stream. Contexts take
 * turns by time slices; those of processes under an MPS daemon take one turn together, in which
 * all run at once. */
#ifndef FAKEGPU_CARD_H
#define FAKEGPU_CARD_H

#include "fakegpu.h"

#include <pthread.h>

enum {
	FG_QUEUES = 128,
	FG_DEPTH = 1024,    /* submitted and not done; a launch waits when there are more */
	FG_TURN_MPS = FG_QUEUES, /* the turn that all clients of an MPS daemon share */
	FG_TURN_NONE,
};

/* Times are CLOCK_MONOTONIC, or lengths, in nanoseconds. */
struct fg_item {
	uint64_t end;  /* the context's work up to here */
	uint64_t done; /* when it was */
};

struct fg_queue {
	uint32_t owner; /* 1 + its process's slot; 0: free */
	int32_t pid;
	uint32_t percent; /* of the card's multiprocessors; below 100 only under MPS */
	uint32_t mps;
	uint64_t pushed, done; /* items, ever */
	uint64_t submitted;    /* work, ever */
	double served;         /* of that */
	struct fg_item item[FG_DEPTH];
};

struct fg_card {
	union {
		pthread_mutex_t lock;
		uint8_t space[64];
	};
	uint32_t ready;      /* the lock is one */
	uint32_t high_water; /* queues from here on were never used */
	uint32_t turn;       /* who has the card: a queue's number or FG_TURN_* */
	uint32_t slice_us, switch_loss_percent;
	uint32_t padding;
	uint64_t at;         /* the present that was worked out last */
	uint64_t slice_end;
	uint64_t switched;   /* when the turn's owner may begin */
	double busy;         /* time in which work ran, ever */
	uint64_t switching;  /* time that was lost between turns, ever */
	uint64_t switches;
	struct fg_queue queue[FG_QUEUES];
};

_Static_assert(sizeof(struct fg_card) <= FG_CARD_SIZE, "a card's part of the file");

/* Brings a card up to `now`; with its lock held. */
void fg_advance(struct fg_card *card, uint64_t now);

/* Earliest time at which a queue's item could be done; with the lock held, brought up to now. */
uint64_t fg_earliest(const struct fg_card *card, const struct fg_queue *queue, uint64_t item);

/* A queue of this process on a card, or NULL. `percent` below 100 limits it; `mps`: it shares its
 * turn. */
struct fg_queue *fg_queue_open(const struct fg_gpu *gpu, unsigned percent, bool mps);
void fg_queue_close(unsigned key, struct fg_queue *queue);

/* Takes a card's lock and brings it up to the present, which is returned. */
uint64_t fg_card_enter(unsigned key);
void fg_card_leave(unsigned key);
struct fg_card *fg_card(unsigned key);

/* Adds work of so many nanoseconds; returns its number, from 1, or 0 when the queue is full. With
 * the lock held. */
uint64_t fg_push(struct fg_queue *queue, uint64_t length);

/* Takes away what processes left that are gone, at most once in a millisecond. Without locks. */
void fg_reap(unsigned key, const struct fg_queue *own);

void fg_sleep_until(uint64_t when);
uint64_t fg_now(void);

#endif
