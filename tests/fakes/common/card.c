/* The queues of a card: who has one, and what is in it. A card's lock is the kernel's to give back
 * when its holder dies; what that left half done is a nanosecond more or less. */
#define _GNU_SOURCE
#include "card.h"
#include "state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

uint64_t fg_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void fg_sleep_until(uint64_t when)
{
	struct timespec t = {(time_t)(when / 1000000000), (long)(when % 1000000000)};
	/* To the point, as a driver's wait is: by default the kernel adds up to 50 us. */
	int slack = prctl(PR_GET_TIMERSLACK);
	prctl(PR_SET_TIMERSLACK, 1UL);
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
}

static void lock(struct fg_card *card)
{
	int rc = pthread_mutex_lock(&card->lock);
	if (rc == EOWNERDEAD)
		rc = pthread_mutex_consistent(&card->lock);
	if (rc)
		abort(); /* a card without a lock would give wrong times */
}

static struct fg_card *card_of(struct shared *s, unsigned key)
{
	return &s->card[key].state;
}

struct fg_card *fg_card(unsigned key)
{
	unsigned index;
	struct shared *s = fg_own_map(&index);
	return s ? card_of(s, key) : NULL;
}

uint64_t fg_card_enter(unsigned key)
{
	struct fg_card *card = fg_card(key);
	lock(card);
	uint64_t now = fg_now();
	fg_advance(card, now);
	return now;
}

void fg_card_leave(unsigned key)
{
	pthread_mutex_unlock(&fg_card(key)->lock);
}

/* With all accounts locked, so that it happens once. */
static void make_ready(struct fg_card *card)
{
	pthread_mutexattr_t shared;
	if (card->ready)
		return;
	pthread_mutexattr_init(&shared);
	pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&card->lock, &shared);
	pthread_mutexattr_destroy(&shared);
	card->turn = FG_TURN_NONE;
	card->ready = 1;
}

static void clear(struct fg_queue *queue)
{
	memset(queue, 0, offsetof(struct fg_queue, item));
}

static struct fg_queue *free_queue(struct fg_card *card)
{
	for (unsigned i = 0; i < card->high_water; i++)
		if (!card->queue[i].owner)
			return &card->queue[i];
	return card->high_water < FG_QUEUES ? &card->queue[card->high_water++] : NULL;
}

struct fg_queue *fg_queue_open(const struct fg_gpu *gpu, unsigned percent, bool mps)
{
	unsigned index;
	struct shared *s = fg_own_map(&index);
	int fd = s ? fg_enter() : -1;
	if (fd < 0)
		return NULL;
	fg_sweep(fd, s);
	make_ready(card_of(s, gpu->key));
	fg_leave(fd);
	fg_card_enter(gpu->key);
	struct fg_card *card = card_of(s, gpu->key);
	struct fg_queue *queue = free_queue(card);
	card->slice_us = gpu->slice_us;
	card->switch_loss_percent = gpu->switch_loss_percent;
	if (queue) {
		clear(queue);
		queue->pid = s->slot[index].pid;
		queue->percent = percent;
		queue->mps = mps;
		queue->owner = index + 1;
	}
	fg_card_leave(gpu->key);
	return queue;
}

void fg_queue_close(unsigned key, struct fg_queue *queue)
{
	fg_card_enter(key);
	clear(queue);
	fg_card_leave(key);
}

void fg_queues_forget(struct shared *s, unsigned slot)
{
	for (unsigned key = 0; key < FG_MAX_GPUS; key++) {
		struct fg_card *card = card_of(s, key);
		if (!card->ready)
			continue;
		lock(card);
		fg_advance(card, fg_now());
		for (unsigned i = 0; i < card->high_water; i++)
			if (card->queue[i].owner == slot + 1)
				clear(&card->queue[i]);
		pthread_mutex_unlock(&card->lock);
	}
}

uint64_t fg_push(struct fg_queue *queue, uint64_t length)
{
	if (queue->pushed - queue->done >= FG_DEPTH)
		return 0;
	queue->submitted += length;
	queue->item[queue->pushed % FG_DEPTH] = (struct fg_item){queue->submitted, 0};
	return ++queue->pushed;
}

void fg_reap(unsigned key, const struct fg_queue *own)
{
	static uint64_t last;
	uint64_t now = fg_now();
	if (now - __atomic_load_n(&last, __ATOMIC_RELAXED) < 1000000)
		return;
	__atomic_store_n(&last, now, __ATOMIC_RELAXED);
	const struct fg_card *card = fg_card(key);
	bool others = false;
	for (unsigned i = 0; i < card->high_water; i++)
		others = others || (&card->queue[i] != own && card->queue[i].pushed > card->queue[i].done);
	unsigned index;
	struct shared *s = fg_own_map(&index);
	int fd = others && s ? fg_enter() : -1;
	if (fd < 0)
		return;
	fg_sweep(fd, s);
	fg_leave(fd);
}
