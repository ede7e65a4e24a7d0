/* How a card's time passes: turn after turn, each of at most a slice. */
#include "card.h"

/* By hand, since not all that link this have the mathematical library. */
static double least(double a, double b)
{
	return a < b ? a : b;
}

static uint64_t up(double value)
{
	uint64_t whole = (uint64_t)value;
	return whole + (value > (double)whole);
}

static bool waits(const struct fg_queue *q)
{
	return q->owner && q->done < q->pushed;
}

static bool has_work(const struct fg_card *c, unsigned turn)
{
	if (turn < FG_QUEUES)
		return waits(&c->queue[turn]) && !c->queue[turn].mps;
	for (unsigned i = 0; turn == FG_TURN_MPS && i < c->high_water; i++)
		if (c->queue[i].mps && waits(&c->queue[i]))
			return true;
	return false;
}

/* The next turn that has work, the present one last. */
static unsigned next_turn(const struct fg_card *c)
{
	for (unsigned step = 1; step <= FG_TURN_MPS + 1; step++) {
		unsigned turn = (c->turn + step) % (FG_TURN_MPS + 1);
		if (has_work(c, turn))
			return turn;
	}
	return FG_TURN_NONE;
}

static const struct fg_item *head(const struct fg_queue *q)
{
	return &q->item[q->done % FG_DEPTH];
}

static void serve(struct fg_card *c, struct fg_queue *q, double work)
{
	double end = (double)head(q)->end;
	c->busy += least(work, end - q->served);
	q->served = least(q->served + work, end);
}

static void finish(struct fg_card *c, struct fg_queue *q)
{
	/* Rates are fractions, so the last nanosecond may be one. */
	while (waits(q) && (double)head(q)->end - q->served < 0.5) {
		q->served = (double)head(q)->end;
		q->item[q->done % FG_DEPTH].done = c->at;
		q->done++;
	}
}

static void run_alone(struct fg_card *c, struct fg_queue *q, uint64_t until)
{
	while (waits(q) && c->at < until) {
		uint64_t need = head(q)->end - (uint64_t)q->served;
		uint64_t step = need < until - c->at ? need : until - c->at;
		c->at += step;
		serve(c, q, (double)step);
		finish(c, q);
	}
}

/* What each client of MPS gets of the card: at most its percentage, and what those leave that ask
 * for less is split among the others. */
static void rates(const struct fg_card *c, double rate[FG_QUEUES])
{
	double left = 1;
	unsigned open = 0;
	for (unsigned i = 0; i < c->high_water; i++) {
		rate[i] = c->queue[i].mps && waits(&c->queue[i]) ? -1 : 0;
		open += rate[i] < 0;
	}
	for (bool changed = true; changed && open;) {
		double fair = left / open;
		changed = false;
		for (unsigned i = 0; i < c->high_water; i++) {
			double most = c->queue[i].percent / 100.0;
			if (rate[i] >= 0 || most > fair)
				continue;
			rate[i] = most;
			left -= most;
			open--;
			changed = true;
		}
	}
	for (unsigned i = 0; i < c->high_water; i++)
		if (rate[i] < 0)
			rate[i] = left / open;
}

static void run_together(struct fg_card *c, uint64_t until)
{
	double rate[FG_QUEUES];
	while (has_work(c, FG_TURN_MPS) && c->at < until) {
		uint64_t step = until - c->at;
		rates(c, rate);
		for (unsigned i = 0; i < c->high_water; i++)
			if (rate[i] > 0) {
				double need = ((double)head(&c->queue[i])->end - c->queue[i].served) / rate[i];
				if (need < (double)step)
					step = up(need);
			}
		c->at += step;
		for (unsigned i = 0; i < c->high_water; i++)
			if (rate[i] > 0)
				serve(c, &c->queue[i], rate[i] * (double)step);
		for (unsigned i = 0; i < c->high_water; i++)
			if (rate[i] > 0)
				finish(c, &c->queue[i]);
	}
}

static void begin_turn(struct fg_card *c, unsigned turn)
{
	uint64_t slice = c->slice_us * UINT64_C(1000);
	c->slice_end = c->at + slice;
	if (turn == c->turn)
		return;
	/* The first context that ever runs replaces nobody. */
	c->switched = c->at + (c->turn == FG_TURN_NONE ? 0 : slice * c->switch_loss_percent / 100);
	c->switches++;
	c->turn = turn;
}

void fg_advance(struct fg_card *c, uint64_t now)
{
	while (c->at < now) {
		if (c->at >= c->slice_end || !has_work(c, c->turn)) {
			unsigned turn = next_turn(c);
			if (turn == FG_TURN_NONE) {
				c->at = now;
				return;
			}
			begin_turn(c, turn);
		}
		uint64_t until = now < c->slice_end ? now : c->slice_end;
		if (c->at < c->switched) {
			uint64_t ready = until < c->switched ? until : c->switched;
			c->switching += ready - c->at;
			c->at = ready;
		} else if (c->turn == FG_TURN_MPS) {
			run_together(c, until);
		} else {
			run_alone(c, &c->queue[c->turn], until);
		}
	}
}

uint64_t fg_earliest(const struct fg_card *c, const struct fg_queue *q, uint64_t item)
{
	unsigned turn = q->mps ? FG_TURN_MPS : (unsigned)(q - c->queue);
	uint64_t from = c->at;
	if (turn == c->turn || !has_work(c, c->turn)) {
		from = turn == c->turn && c->switched > from ? c->switched : from;
	} else if (c->turn == FG_TURN_MPS) {
		from = c->at + 1000; /* how long they need is for the rates to say */
	} else {
		const struct fg_queue *other = &c->queue[c->turn];
		uint64_t rest = (uint64_t)((double)other->submitted - other->served);
		from = c->at + rest < c->slice_end ? c->at + rest : c->slice_end;
	}
	double need = (double)q->item[(item - 1) % FG_DEPTH].end - q->served;
	return from + (need > 0 ? up(need * 100 / q->percent) : 0);
}
