/*
 * Iterations of the engine: launch the most urgent job, reap, poll gates, launch more. On the
 * engine thread, or the loop thread (fa_engine_poll).
 */
#include "daemon/engine/private.h"

#include "common/clock.h"

#include <errno.h>
#include <sys/prctl.h>

/* New decodes must not wait for many launches. */
#define LAUNCHES_PER_ITERATION 16
/* Hot gates are polled so often between two iterations. */
#define GATE_POLLS_PER_ITERATION 32

/* Limits the ends published at once, as the loop thread waits for the mutex. */
#define PUBLISHED_AT_ONCE 64

#define LOCK_TRIES 200

/* After so long, or twice that, without a poll the loop thread is absent. */
#define STANDBY_TIMEOUT_NS (4 * FA_NS_PER_US)
/* A thread on standby spins, then sleeps between checks. */
#define STANDBY_SPIN_BUSY_NS (200 * FA_NS_PER_US)
#define STANDBY_SPIN_IDLE_NS (50 * FA_NS_PER_US)
#define STANDBY_SLEEP_NS (100 * FA_NS_PER_US)
/* Pause instructions between reads of the clock. */
#define STANDBY_RELAX 16

/* Spins first: the owner holds it for a few stores. */
void fa_engine_lock_mutex(struct fa_engine *engine, pthread_mutex_t *mutex)
{
	for (int i = 0; engine->parker.may_spin && i < LOCK_TRIES; i++) {
		if (pthread_mutex_trylock(mutex) == 0)
			return;
		fa_parker_relax(&engine->parker);
	}
	pthread_mutex_lock(mutex);
}

/* ---- one iteration */

/* New jobs first: a cancel or close in the same inbox may refer to them. */
void fa_engine_drain_inbox(struct fa_engine *engine)
{
	struct fa_list submitted, cancelled, answered, closing;
	struct fa_job *job;
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
	pthread_mutex_unlock(&engine->mailbox_mutex);

	while (!fa_list_empty(&submitted)) {
		job = fa_job_first(&submitted);
		fa_list_remove(&job->link);
		fa_stream_receive(job->stream, job);
	}
	while (!fa_list_empty(&cancelled)) {
		job = fa_container_of(cancelled.next, struct fa_job, cancel_link);
		fa_list_remove(&job->cancel_link);
		fa_job_end(job, job->cancel_status);
	}
	while (!fa_list_empty(&answered)) {
		job = fa_container_of(answered.next, struct fa_job, answer_link);
		fa_list_remove(&job->answer_link);
		fa_job_answered(job);
	}
	while (!fa_list_empty(&closing)) {
		stream = fa_container_of(closing.next, struct fa_stream, link);
		fa_list_remove(&stream->link);
		fa_stream_end(stream, stream->close_status);
	}
}

/* If it is lost, launch() ends waiting jobs, in the order of the run queue. */
static void check_device(struct fa_engine *engine)
{
	if (engine->lost || !engine->ops->health ||
	    engine->ops->health(engine->device, &engine->lost_reason) == 0)
		return;
	atomic_store_explicit(&engine->lost, true, memory_order_release);
	fa_engine_free_lanes(engine);
	engine->notify(engine->userdata);
}

static void reap(struct fa_engine *engine)
{
	struct fa_job *job;
	struct fa_list works;

	fa_list_init(&works);
	engine->ops->reap(engine->device, &works);
	check_device(engine);
	if (engine->polled && !fa_list_empty(&works))
		fa_parker_poll_hit(&engine->parker);
	while (!fa_list_empty(&works)) {
		job = fa_container_of(works.next, struct fa_job, work.link);
		fa_list_remove(&job->work.link);
		fa_job_reaped(job);
	}
}

static void expire(struct fa_engine *engine)
{
	struct fa_job *job;
	uint64_t now_ns;

	if (!engine->deadlines.root)
		return;
	now_ns = fa_now_ns();
	while (engine->deadlines.root && engine->deadlines.root->at_ns <= now_ns) {
		job = fa_container_of(engine->deadlines.root, struct fa_job, deadline);
		fa_job_end(job, -ETIMEDOUT);
	}
}

void fa_stream_publish(struct fa_stream *stream, uint64_t value, const struct fa_outcome *outcome)
{
	struct fa_completion_records *records = atomic_load_explicit(&stream->records,
	                                                             memory_order_acquire);

	if (records)
		fa_completion_records_record(records, stream->id, value, outcome);
	if (outcome->status)
		atomic_store_explicit(&stream->slot->failed, value, memory_order_relaxed);
	atomic_store_explicit(&stream->slot->completed, value, memory_order_release);
}

static void publish_job(struct fa_job *job)
{
	const struct fa_outcome outcome = {
		.status = job->status,
		.queued_ns = job->queued_ns,
		.started_ns = job->started_ns,
		.finished_ns = job->finished_ns,
		.number = job->number,
	};

	fa_stream_publish(job->stream, job->value, &outcome);
	if (job->gates)
		fa_gates_signal(job->gates, job->status);
}

/* Finds records of sleeping clients, each once and referenced: their streams may be gone when they
 * are woken, without the mutex. */
static struct fa_completion_records *find_sleepers(const struct fa_list *done)
{
	struct fa_completion_records *sleepers = NULL, *last = NULL;
	const struct fa_list *pos;

	fa_list_for_each(pos, done) {
		const struct fa_stream *stream =
			fa_container_of(pos, const struct fa_job, link)->stream;
		struct fa_completion_records *records = atomic_load_explicit(&stream->records,
		                                                             memory_order_acquire);

		if (!records || records == last)
			continue;
		last = records;
		if (!fa_ring_needs_wakeup(fa_completion_records_words(records)))
			continue;
		records->next = sleepers;
		sleepers = fa_completion_records_ref(records);
	}
	return sleepers;
}

static void wake_sleepers(struct fa_completion_records *sleepers)
{
	while (sleepers) {
		struct fa_completion_records *records = sleepers;

		sleepers = records->next;
		fa_completion_records_wake(records);
		fa_completion_records_unref(records);
	}
}

/* Puts the first finished jobs into the outbox; with the last, what is taken after them. */
static void publish_some(struct fa_engine *engine)
{
	struct fa_completion_records *sleepers;
	struct fa_list jobs;
	bool was_empty;

	fa_list_init(&jobs);
	/* Under the mutex: a client reacts to a finished job, which the loop thread must then find
	 * in the outbox. */
	fa_engine_lock(engine);
	was_empty = fa_list_empty(&engine->outbox.finished) &&
	            fa_list_empty(&engine->outbox.confirms) &&
	            fa_list_empty(&engine->outbox.closed);
	atomic_store_explicit(&engine->has_events, true, memory_order_relaxed);
	for (int i = 0; i < PUBLISHED_AT_ONCE && !fa_list_empty(&engine->done); i++) {
		struct fa_job *job = fa_job_first(&engine->done);

		fa_list_remove(&job->link);
		fa_list_append(&jobs, &job->link);
		fa_list_remove(&job->cancel_link);
		fa_list_remove(&job->answer_link);
		job->delivered = true;
		publish_job(job);
	}
	sleepers = find_sleepers(&jobs);
	fa_list_splice(&engine->outbox.finished, &jobs);
	if (fa_list_empty(&engine->done)) {
		fa_list_splice(&engine->outbox.confirms, &engine->confirms);
		fa_list_splice(&engine->outbox.closed, &engine->closed);
	}
	pthread_mutex_unlock(&engine->mailbox_mutex);
	wake_sleepers(sleepers);
	if (was_empty)
		engine->notify(engine->userdata);
}

static void deliver(struct fa_engine *engine)
{
	uint64_t now_ns, finished = 0, cancelled = 0, failed = 0;
	struct fa_job *job;
	struct fa_list *pos;

	if (fa_list_empty(&engine->done) && fa_list_empty(&engine->confirms) &&
	    fa_list_empty(&engine->closed))
		return;
	now_ns = fa_now_ns();
	fa_list_for_each(pos, &engine->done) {
		job = fa_container_of(pos, struct fa_job, link);
		if (!job->finished_ns)
			job->finished_ns = now_ns;
		finished++;
		if (job->status)
			(*(job->status == -ECANCELED ? &cancelled : &failed))++;
	}
	fa_engine_count(&engine->stats.finished, finished);
	fa_engine_count(&engine->stats.cancelled, cancelled);
	fa_engine_count(&engine->stats.failed, failed);

	do
		publish_some(engine);
	while (!fa_list_empty(&engine->done));
}

static int launch(struct fa_engine *engine, int max)
{
	int n = 0;

	while (n < max && fa_engine_can_launch(engine))
		n += fa_engine_launch_next(engine);
	return n;
}

/* The launches come first, as they are more urgent. */
static void poll_launched(struct fa_engine *engine, int n_launched)
{
	if (engine->polled && n_launched)
		fa_parker_poll_begin(&engine->parker);
}

static bool has_more_to_do(const struct fa_engine *engine)
{
	return fa_engine_can_launch(engine) || !fa_list_empty(&engine->done) ||
	       !fa_list_empty(&engine->confirms) || !fa_list_empty(&engine->closed);
}

static bool device_is_polled(const struct fa_engine *engine)
{
	return engine->polled && (engine->n_running || !fa_list_empty(&engine->deferred));
}

static bool update_needs_polling(struct fa_engine *engine)
{
	const bool needs = has_more_to_do(engine) || device_is_polled(engine) ||
	                   !fa_list_empty(&engine->hot_gates) || engine->parked_gates.root ||
	                   engine->deadlines.root;

	atomic_store_explicit(&engine->needs_polling, needs, memory_order_relaxed);
	return needs;
}

bool fa_engine_finish_confirmed(struct fa_engine *engine, struct fa_job *job)
{
	fa_job_answered(job);
	deliver(engine);
	return update_needs_polling(engine);
}

void fa_engine_iterate(struct fa_engine *engine, int max_launches)
{
	int n = 0;

	/* New jobs first, unless deadlines have to be checked. */
	if (!engine->deadlines.root)
		n = launch(engine, 1);
	poll_launched(engine, n);
	reap(engine);
	fa_engine_retry_deferred(engine);
	/* Before deliver(), so that the lane does not run dry. */
	if (engine->lane_freed && !engine->deadlines.root) {
		const int refills = launch(engine, LAUNCHES_PER_ITERATION);

		poll_launched(engine, refills);
		n += refills;
	}
	engine->lane_freed = false;
	/* Before gates are polled, as a signal may open one. */
	deliver(engine);
	expire(engine);
	fa_engine_poll_gates(engine);
	deliver(engine);
	poll_launched(engine, launch(engine, max_launches - n));
	if (engine->urgent)
		fa_parker_poll_urgent(&engine->parker);
	engine->urgent = false;
	(void)update_needs_polling(engine);
}

/* Repeats only if the device notifies: reap() takes a lock that the device's threads need. */
static void spin_on_gates(struct fa_engine *engine)
{
	int looks = engine->polled || !engine->parker.may_spin ? 1 : GATE_POLLS_PER_ITERATION;

	while (looks-- && !fa_parker_is_woken(&engine->parker) && !fa_engine_any_gate_open(engine))
		fa_parker_relax(&engine->parker);
}

struct wait_plan {
	enum {
		NO_WAIT,
		POLL,
		SLEEP,
		PARK,
	} how;
	uint64_t until_ns, pause_ns;
};

static struct wait_plan plan_wait(struct fa_engine *engine)
{
	struct wait_plan plan = {
		.how = PARK,
		.until_ns = engine->deadlines.root ? engine->deadlines.root->at_ns : FA_NS_NEVER,
	};

	if (has_more_to_do(engine)) {
		plan.how = NO_WAIT;
		return plan;
	}
	if (engine->parked_gates.root && engine->parked_gates.root->at_ns < plan.until_ns)
		plan.until_ns = engine->parked_gates.root->at_ns;
	if (!fa_list_empty(&engine->hot_gates)) {
		spin_on_gates(engine);
		plan.how = NO_WAIT;
	} else if (device_is_polled(engine)) {
		plan.how = POLL;
		plan.pause_ns = fa_parker_poll_pause_ns(&engine->parker, fa_now_ns());
	} else if (engine->parked_gates.root) {
		plan.how = SLEEP;
	}
	return plan;
}

static void wait_for_events(struct fa_engine *engine, const struct wait_plan *plan)
{
	if (plan->how == POLL)
		fa_parker_poll(&engine->parker, plan->pause_ns, plan->until_ns);
	else if (plan->how == SLEEP)
		fa_parker_sleep(&engine->parker, plan->until_ns);
	else if (plan->how == PARK)
		fa_parker_park(&engine->parker, plan->until_ns);
}

struct standby {
	bool needs_polling;
	uint64_t since_ns; /* 0: not on standby */
};

/* Waits while the loop thread polls. Returns true, with state_mutex, if it has stopped too
 * early. */
static bool stand_by(struct fa_engine *engine, struct standby *standby)
{
	const uint64_t n_polls = atomic_load_explicit(&engine->loop_poll_count,
	                                              memory_order_relaxed);
	const uint64_t begin_ns = fa_now_ns();
	const bool needs_polling = atomic_load_explicit(&engine->needs_polling,
	                                                memory_order_relaxed);
	const uint64_t spin_ns = needs_polling ? STANDBY_SPIN_BUSY_NS : STANDBY_SPIN_IDLE_NS;

	if (!standby->since_ns || needs_polling != standby->needs_polling)
		*standby = (struct standby){ .needs_polling = needs_polling, .since_ns = begin_ns };
	if (begin_ns - standby->since_ns > spin_ns || !engine->parker.may_spin)
		fa_parker_sleep(&engine->parker, begin_ns + STANDBY_SLEEP_NS);
	/* Seldom: each read takes the cache line from the loop thread, which writes it. */
	do {
		for (int i = 0; i < STANDBY_RELAX && !fa_parker_is_woken(&engine->parker); i++)
			fa_parker_relax(&engine->parker);
	} while (!fa_parker_is_woken(&engine->parker) &&
	         fa_now_ns() - begin_ns < STANDBY_TIMEOUT_NS);
	if (!needs_polling || fa_parker_is_woken(&engine->parker) ||
	    atomic_load_explicit(&engine->loop_poll_count, memory_order_relaxed) != n_polls)
		return false;
	/* Else the loop thread is busy elsewhere or in a long iteration. */
	if (pthread_mutex_trylock(&engine->state_mutex) != 0)
		return false;
	atomic_store_explicit(&engine->loop_polls, false, memory_order_relaxed);
	return true;
}

static void answer_heartbeat(struct fa_engine *engine)
{
	const uint64_t asked = atomic_load_explicit(&engine->heartbeats_asked,
	                                            memory_order_relaxed);

	if (atomic_load_explicit(&engine->heartbeats_answered, memory_order_relaxed) != asked)
		atomic_store_explicit(&engine->heartbeats_answered, asked, memory_order_relaxed);
}

void *fa_engine_thread(void *userdata)
{
	struct fa_engine *engine = userdata;
	struct standby standby = {};
	struct wait_plan plan;
	bool loop_polls, more = false;

	/* The kernel would round up short sleeps. */
	(void)prctl(PR_SET_TIMERSLACK, 1UL);
	for (;;) {
		const bool woken = fa_parker_consume(&engine->parker);

		if (woken && atomic_load_explicit(&engine->stop, memory_order_relaxed))
			return NULL;
		loop_polls = atomic_load_explicit(&engine->loop_polls, memory_order_relaxed);
		if (woken || more || !loop_polls)
			fa_engine_lock_mutex(engine, &engine->state_mutex);
		else if (!stand_by(engine, &standby))
			continue;
		standby.since_ns = 0;
		if (woken)
			fa_engine_drain_inbox(engine);
		fa_engine_iterate(engine, LAUNCHES_PER_ITERATION);
		more = has_more_to_do(engine);
		plan = plan_wait(engine);
		pthread_mutex_unlock(&engine->state_mutex);
		if (woken)
			answer_heartbeat(engine);
		/* The loop thread wakes this one when it starts to poll, but not while it polls. */
		if (!atomic_load_explicit(&engine->loop_polls, memory_order_relaxed))
			wait_for_events(engine, &plan);
	}
}
