/*
 * Rounds of the engine: what is to be launched first, what the device has done, gates, what
 * else is to be launched; and the thread that runs them, unless the loop thread attends.
 */
#include "daemon/engine/private.h"

#include "common/clock.h"

#include <errno.h>
#include <sys/prctl.h>

/* Launches between two looks for news, so that decode does not wait for a crowd. */
#define LAUNCHES_A_ROUND 16
/* Looks at gates between two looks at everything else. */
#define LOOKS_A_ROUND 32

/* Attempts at the mutex before its other holder is slept for. */
#define LOCK_TRIES 200

/* The loop thread that attends is waited for so long, and up to twice that, ... */
#define GUARD_NS (4 * FA_NS_PER_US)
/* ... and looked after all the time for so long after something was due; then between sleeps. */
#define GUARD_LOOK_NS (200 * FA_NS_PER_US)
#define GUARD_IDLE_LOOK_NS (50 * FA_NS_PER_US)
#define GUARD_PAUSE_NS (100 * FA_NS_PER_US)
/* Turns of waiting between two looks at the clock. */
#define GUARD_RELAX 16

/* It is held for a few stores, and often just when the other thread, which polls, sees the
 * first of them: to sleep then, and be woken, would take longer than a request does. */
void fa_engine_lock_mutex(struct fa_engine *engine, pthread_mutex_t *mutex)
{
	for (int i = 0; engine->waiter.may_spin && i < LOCK_TRIES; i++) {
		if (pthread_mutex_trylock(mutex) == 0)
			return;
		fa_parker_relax(&engine->waiter);
	}
	pthread_mutex_lock(mutex);
}

/* ---- the thread */

/* What came in: requests first, since a cancel or close that came after them is
 * looked at in the same round. */
void fa_engine_receive(struct fa_engine *engine)
{
	struct fa_list submitted, cancelled, answered, closing;
	struct fa_job *request;
	struct fa_stream *stream;

	fa_list_init(&submitted);
	fa_list_init(&cancelled);
	fa_list_init(&answered);
	fa_list_init(&closing);
	fa_engine_lock(engine);
	fa_list_splice(&submitted, &engine->inbox.submitted);
	fa_list_splice(&cancelled, &engine->inbox.cancelled);
	fa_list_splice(&answered, &engine->inbox.answered);
	fa_list_splice(&closing, &engine->inbox.closing);
	pthread_mutex_unlock(&engine->mutex);

	while (!fa_list_empty(&submitted)) {
		request = fa_job_first(&submitted);
		fa_list_remove(&request->link);
		fa_stream_receive(request->stream, request);
	}
	while (!fa_list_empty(&cancelled)) {
		request = fa_container_of(cancelled.next, struct fa_job, cancel_link);
		fa_list_remove(&request->cancel_link);
		fa_job_end(request, request->cancel_status);
	}
	while (!fa_list_empty(&answered)) {
		request = fa_container_of(answered.next, struct fa_job, answer_link);
		fa_list_remove(&request->answer_link);
		fa_job_answered(request);
	}
	while (!fa_list_empty(&closing)) {
		stream = fa_container_of(closing.next, struct fa_stream, link);
		fa_list_remove(&stream->link);
		fa_stream_end(stream, stream->close_status);
	}
}

/* What waits is ended by launch(), in its turn. */
static void look_after_device(struct fa_engine *engine)
{
	if (engine->lost || !engine->ops->health ||
	    engine->ops->health(engine->device, &engine->lost_reason) == 0)
		return;
	atomic_store_explicit(&engine->lost, true, memory_order_release);
	engine->notify(engine->userdata);
}

static void reap(struct fa_engine *engine)
{
	struct fa_job *request;
	struct fa_list works;

	fa_list_init(&works);
	engine->ops->reap(engine->device, &works);
	look_after_device(engine);
	if (engine->polled && !fa_list_empty(&works))
		fa_parker_came(&engine->waiter);
	while (!fa_list_empty(&works)) {
		request = fa_container_of(works.next, struct fa_job, work.link);
		fa_list_remove(&request->work.link);
		fa_job_reaped(request);
	}
}

static void expire(struct fa_engine *engine)
{
	struct fa_job *request;
	uint64_t now_ns;

	if (!engine->deadlines.root)
		return;
	now_ns = fa_now_ns();
	while (engine->deadlines.root && engine->deadlines.root->at_ns <= now_ns) {
		request = fa_container_of(engine->deadlines.root, struct fa_job, deadline);
		fa_job_end(request, -ETIMEDOUT);
	}
}

void fa_stream_publish(struct fa_stream *stream, uint64_t value, const struct fa_outcome *outcome)
{
	struct fa_completion_records *results = atomic_load_explicit(&stream->results,
	                                                             memory_order_acquire);

	atomic_store_explicit(&stream->finished, value, memory_order_release);
	if (results)
		fa_completion_records_record(results, stream->id, value, outcome);
	if (outcome->status)
		atomic_store_explicit(&stream->slot->failed, value, memory_order_relaxed);
	atomic_store_explicit(&stream->slot->completed, value, memory_order_release);
}

static void publish_request(struct fa_job *request)
{
	const struct fa_outcome outcome = {
		.status = request->status,
		.queued_ns = request->queued_ns,
		.started_ns = request->started_ns,
		.finished_ns = request->finished_ns,
	};

	fa_stream_publish(request->stream, request->value, &outcome);
	if (request->gates)
		fa_gates_signal(request->gates, request->status);
}

/* Those who sleep for something that was just published, each once and with a reference:
 * they are woken without the mutex, when their streams may have gone. */
static struct fa_completion_records *find_sleepers(const struct fa_list *done)
{
	struct fa_completion_records *sleepers = NULL, *last = NULL;
	const struct fa_list *pos;

	fa_list_for_each(pos, done) {
		const struct fa_stream *stream =
			fa_container_of(pos, const struct fa_job, link)->stream;
		struct fa_completion_records *results = atomic_load_explicit(&stream->results,
		                                                             memory_order_acquire);

		if (!results || results == last)
			continue;
		last = results;
		if (!fa_ring_must_wake(fa_completion_records_words(results)))
			continue;
		results->next = sleepers;
		sleepers = fa_completion_records_ref(results);
	}
	return sleepers;
}

static void wake_sleepers(struct fa_completion_records *sleepers)
{
	while (sleepers) {
		struct fa_completion_records *results = sleepers;

		sleepers = results->next;
		fa_completion_records_wake(results);
		fa_completion_records_unref(results);
	}
}

static void deliver(struct fa_engine *engine)
{
	uint64_t now_ns, finished = 0, cancelled = 0, failed = 0;
	struct fa_completion_records *sleepers;
	struct fa_job *request;
	struct fa_list *pos;
	bool was_empty;

	if (fa_list_empty(&engine->done) && fa_list_empty(&engine->confirms) &&
	    fa_list_empty(&engine->closed))
		return;
	now_ns = fa_now_ns();
	fa_list_for_each(pos, &engine->done) {
		request = fa_container_of(pos, struct fa_job, link);
		if (!request->finished_ns)
			request->finished_ns = now_ns;
		finished++;
		if (request->status)
			(*(request->status == -ECANCELED ? &cancelled : &failed))++;
	}
	fa_engine_count(&engine->stats.finished, finished);
	fa_engine_count(&engine->stats.cancelled, cancelled);
	fa_engine_count(&engine->stats.failed, failed);

	/* Published under the mutex: a client that saw it cannot be faster, with what it
	 * sends next, than the loop thread can take this request. */
	fa_engine_lock(engine);
	was_empty = fa_list_empty(&engine->outbox.requests) &&
	            fa_list_empty(&engine->outbox.confirms) &&
	            fa_list_empty(&engine->outbox.closed);
	atomic_store_explicit(&engine->has_news, true, memory_order_relaxed);
	fa_list_for_each(pos, &engine->done) {
		request = fa_container_of(pos, struct fa_job, link);
		fa_list_remove(&request->cancel_link);
		fa_list_remove(&request->answer_link);
		request->delivered = true;
		publish_request(request);
	}
	sleepers = find_sleepers(&engine->done);
	fa_list_splice(&engine->outbox.requests, &engine->done);
	fa_list_splice(&engine->outbox.confirms, &engine->confirms);
	fa_list_splice(&engine->outbox.closed, &engine->closed);
	pthread_mutex_unlock(&engine->mutex);
	wake_sleepers(sleepers);
	if (was_empty)
		engine->notify(engine->userdata);
}

/* Returns how many were. */
static int launch(struct fa_engine *engine, int max)
{
	int n = 0;

	for (; n < max && !fa_fair_queue_empty(&engine->turns); n++)
		fa_engine_launch_next(engine);
	return n;
}

/* Behind the launches: the device has them a moment earlier. */
static void expect(struct fa_engine *engine, int n_launched)
{
	if (engine->polled && n_launched)
		fa_parker_expect(&engine->waiter);
}

/* Whether there is something that waiting does not bring. */
static bool has_more_to_do(const struct fa_engine *engine)
{
	return !fa_fair_queue_empty(&engine->turns) || !fa_list_empty(&engine->done) ||
	       !fa_list_empty(&engine->confirms) || !fa_list_empty(&engine->closed);
}

void fa_engine_round(struct fa_engine *engine, int max_launches)
{
	int n = 0;

	/* What has come is not to wait for all the rest; but to be too late is an end, too. */
	if (!engine->deadlines.root)
		n = launch(engine, 1);
	expect(engine, n);
	reap(engine);
	/* Signals that somebody waits for, perhaps a gate here, too. */
	deliver(engine);
	expire(engine);
	fa_engine_look_at_gates(engine);
	deliver(engine);
	expect(engine, launch(engine, max_launches - n));
	/* However slow that was which has come meanwhile. */
	if (engine->urgent)
		fa_parker_expect_soon(&engine->waiter);
	engine->urgent = false;
	atomic_store_explicit(&engine->due,
	                      has_more_to_do(engine) || (engine->polled && engine->n_running) ||
	                              !fa_list_empty(&engine->gated) || engine->gate_looks.root ||
	                              engine->deadlines.root,
	                      memory_order_relaxed);
}

/* Looks at gates alone for a moment, where a device says when it has finished: to ask it
 * takes a lock that its own threads need. */
static void wait_at_gates(struct fa_engine *engine)
{
	int looks = engine->polled || !engine->waiter.may_spin ? 1 : LOOKS_A_ROUND;

	while (looks-- && !fa_parker_is_woken(&engine->waiter) && !fa_engine_gate_is_open(engine))
		fa_parker_relax(&engine->waiter);
}

/* How to wait for news: said while the round lasts, done behind it. */
struct patience {
	enum {
		NOT_AT_ALL,
		POLLING,
		ASLEEP,
		SPINNING
	} how;
	uint64_t until_ns, pause_ns;
};

static struct patience find_patience(struct fa_engine *engine)
{
	struct patience patience = {
		.how = SPINNING,
		.until_ns = engine->deadlines.root ? engine->deadlines.root->at_ns : FA_NS_NEVER,
	};

	if (has_more_to_do(engine)) {
		patience.how = NOT_AT_ALL;
		return patience;
	}
	if (engine->gate_looks.root && engine->gate_looks.root->at_ns < patience.until_ns)
		patience.until_ns = engine->gate_looks.root->at_ns;
	if (!fa_list_empty(&engine->gated)) {
		wait_at_gates(engine);
		patience.how = NOT_AT_ALL;
	} else if (engine->polled && engine->n_running) {
		patience.how = POLLING;
		patience.pause_ns = fa_parker_pause_ns(&engine->waiter, fa_now_ns());
	} else if (engine->gate_looks.root) {
		patience.how = ASLEEP;
	}
	return patience;
}

/* Returns when there may be news. */
static void wait_for_news(struct fa_engine *engine, const struct patience *patience)
{
	if (patience->how == POLLING)
		fa_parker_poll(&engine->waiter, patience->pause_ns, patience->until_ns);
	else if (patience->how == ASLEEP)
		fa_parker_sleep(&engine->waiter, patience->until_ns);
	else if (patience->how == SPINNING)
		fa_parker_wait(&engine->waiter, patience->until_ns);
}

/* How long the engine thread has stood back. */
struct guard {
	bool due;
	uint64_t since_ns; /* 0: it did not so far */
};

/* Waits while the loop thread attends. Returns whether it does no longer, and then has the mutex
 * of rounds. */
static bool guard(struct fa_engine *engine, struct guard *guard)
{
	const uint64_t beat = atomic_load_explicit(&engine->beats, memory_order_relaxed);
	const uint64_t begin_ns = fa_now_ns();
	const bool due = atomic_load_explicit(&engine->due, memory_order_relaxed);
	const uint64_t look_ns = due ? GUARD_LOOK_NS : GUARD_IDLE_LOOK_NS;

	if (!guard->since_ns || due != guard->due)
		*guard = (struct guard){ .due = due, .since_ns = begin_ns };
	if (begin_ns - guard->since_ns > look_ns || !engine->waiter.may_spin)
		fa_parker_sleep(&engine->waiter, begin_ns + GUARD_PAUSE_NS);
	/* The loop thread writes its words at each turn, and would have to get them back each time
	 * that they are looked at here. */
	do {
		for (int i = 0; i < GUARD_RELAX && !fa_parker_is_woken(&engine->waiter); i++)
			fa_parker_relax(&engine->waiter);
	} while (!fa_parker_is_woken(&engine->waiter) && fa_now_ns() - begin_ns < GUARD_NS);
	if (!due || fa_parker_is_woken(&engine->waiter) ||
	    atomic_load_explicit(&engine->beats, memory_order_relaxed) != beat)
		return false;
	/* It does something else, and what is due cannot wait; unless it is a long round. */
	if (pthread_mutex_trylock(&engine->round) != 0)
		return false;
	atomic_store_explicit(&engine->attended, false, memory_order_relaxed);
	return true;
}

/* Behind a round for which it was woken, as it is to be asked. Whoever asked while that lasted is
 * answered, too: it has come to its end. */
static void give_pulse(struct fa_engine *engine)
{
	const uint64_t asked = atomic_load_explicit(&engine->pulses_asked, memory_order_relaxed);

	if (atomic_load_explicit(&engine->pulses, memory_order_relaxed) != asked)
		atomic_store_explicit(&engine->pulses, asked, memory_order_relaxed);
}

void *fa_engine_run(void *userdata)
{
	struct fa_engine *engine = userdata;
	struct guard guarding = {};
	struct patience patience;
	bool attended, more = false;

	/* Sleeps between two looks at a device or a gate are short, and to be no longer. */
	(void)prctl(PR_SET_TIMERSLACK, 1UL);
	for (;;) {
		const bool woken = fa_parker_look(&engine->waiter);

		if (woken && atomic_load_explicit(&engine->stop, memory_order_relaxed))
			return NULL;
		attended = atomic_load_explicit(&engine->attended, memory_order_relaxed);
		if (woken || more || !attended)
			fa_engine_lock_mutex(engine, &engine->round);
		else if (!guard(engine, &guarding))
			continue;
		guarding.since_ns = 0;
		if (woken)
			fa_engine_receive(engine);
		fa_engine_round(engine, LAUNCHES_A_ROUND);
		more = has_more_to_do(engine);
		patience = find_patience(engine);
		pthread_mutex_unlock(&engine->round);
		if (woken)
			give_pulse(engine);
		/* Who attends from now on wakes it; who did so before does not. */
		if (!atomic_load_explicit(&engine->attended, memory_order_relaxed))
			wait_for_news(engine, &patience);
	}
}
