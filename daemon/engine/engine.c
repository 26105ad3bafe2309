/*
 * The engine's mailbox: its interface for other threads. Between fa_stream_receive() and deliver()
 * a job is scheduler state. Objects cross threads in `inbox` and `outbox`, intrusive lists under
 * the mailbox mutex. While the loop thread polls the engine its submissions bypass the inbox. It
 * only tries state_mutex and never waits for it; the engine thread leaves the mutex alone while the
 * loop thread keeps polling.
 */
#include "daemon/engine/private.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>

/* Bounds launches on the loop thread, as clients' rings wait meanwhile. */
#define LOOP_LAUNCHES 1
/* Jobs of a batch that the engine gets together: as many as a CUDA stream holds, which it launches
 * while the loop thread reads on. */
#define STAGED_MAX 4

int fa_engine_new(const struct fa_device_ops *ops, void (*notify)(void *userdata), void *userdata,
                  struct fa_engine **ret_engine)
{
	struct fa_engine *engine;

	engine = fa_new(struct fa_engine);
	if (!engine)
		return -ENOMEM;
	engine->ops = ops;
	engine->notify = notify;
	engine->userdata = userdata;
	pthread_mutex_init(&engine->mailbox_mutex, NULL);
	pthread_mutex_init(&engine->state_mutex, NULL);
	fa_list_init(&engine->inbox.submitted);
	fa_list_init(&engine->inbox.cancelled);
	fa_list_init(&engine->inbox.answered);
	fa_list_init(&engine->inbox.closing);
	fa_list_init(&engine->outbox.finished);
	fa_list_init(&engine->outbox.confirms);
	fa_list_init(&engine->outbox.closed);
	fa_list_init(&engine->taken_finished);
	fa_list_init(&engine->taken_confirms);
	fa_list_init(&engine->taken_closed);
	fa_list_init(&engine->staged);
	fa_list_init(&engine->done);
	fa_list_init(&engine->confirms);
	fa_list_init(&engine->closed);
	fa_list_init(&engine->hot_gates);
	fa_device_lane_init(&engine->lane);
	fa_list_init(&engine->ready_lanes);
	fa_list_init(&engine->full_lanes);
	fa_list_init(&engine->deferred);
	*ret_engine = engine;
	return 0;
}

int fa_engine_start(struct fa_engine *engine, struct fa_device *device)
{
	struct fa_device_info info;
	sigset_t all, old;
	int r;

	engine->device = device;
	engine->ops->describe(device, &info);
	engine->depth = info.depth;
	engine->polled = info.polled;
	fa_parker_init(&engine->parker);

	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* for the CPU backend, which touches clients' memory */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&engine->thread, NULL, fa_engine_thread, engine);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r < 0)
		return r;
	engine->started = true;
	(void)pthread_setname_np(engine->thread, "fad-engine");
	return 0;
}

struct fa_engine *fa_engine_free(struct fa_engine *engine)
{
	if (!engine)
		return NULL;
	if (engine->started) {
		atomic_store_explicit(&engine->stop, true, memory_order_relaxed);
		fa_engine_wake(engine);
		pthread_join(engine->thread, NULL);
	}
	fa_parker_deinit(&engine->parker);
	pthread_mutex_destroy(&engine->mailbox_mutex);
	pthread_mutex_destroy(&engine->state_mutex);
	free(engine);
	return NULL;
}

bool fa_engine_lost(struct fa_engine *engine, struct fa_error *ret_reason)
{
	if (!atomic_load_explicit(&engine->lost, memory_order_acquire))
		return false;
	*ret_reason = engine->lost_reason;
	return true;
}

void fa_engine_watch_fd(struct fa_engine *engine, int fd)
{
	(void)fa_parker_watch_fd(&engine->parker, fd);
}

void fa_engine_wake(void *userdata)
{
	struct fa_engine *engine = userdata;

	fa_parker_wake(&engine->parker);
}

int fa_engine_group_new(struct fa_engine *engine, struct fa_engine_group **ret_group)
{
	struct fa_engine_group *group;

	group = fa_new(struct fa_engine_group);
	if (!group)
		return -ENOMEM;
	group->engine = engine;
	for (int i = 0; i < _FA_ENGINE_SHARE_N; i++)
		fa_fair_queue_group_init(&group->shares[i].queue);
	*ret_group = group;
	return 0;
}

struct fa_engine_group *fa_engine_group_free(struct fa_engine_group *group)
{
	if (!group)
		return NULL;
	assert(!group->device);
	free(group);
	return NULL;
}

int fa_engine_stream_new(struct fa_engine_group *group, int priority,
                         struct fa_completion_slot *slot, uint64_t first, void *owner,
                         struct fa_stream **ret_stream)
{
	struct fa_stream *stream;

	stream = fa_new(struct fa_stream);
	if (!stream)
		return -ENOMEM;
	stream->engine = group->engine;
	stream->group = group;
	stream->owner = owner;
	stream->slot = slot;
	stream->priority = priority;
	stream->next_value = first;
	for (int i = 0; i < FA_STREAM_CHAINS; i++)
		fa_list_init(&stream->index[i]);
	fa_list_init(&stream->link);
	fa_list_init(&stream->started);
	fa_list_init(&stream->waiting);
	fa_list_init(&stream->run_link);
	fa_list_init(&stream->deferred_link);
	fa_list_init(&stream->gate_link);
	*ret_stream = stream;
	return 0;
}

void fa_engine_stream_set_records(struct fa_stream *stream, struct fa_completion_records *records,
                                  uint32_t id)
{
	stream->records_ref = fa_completion_records_ref(records);
	stream->id = id;
	atomic_store_explicit(&stream->records, records, memory_order_release);
}

void fa_engine_stream_set_device_words(struct fa_stream *stream, uint32_t *words)
{
	atomic_store_explicit(&stream->device_words, words, memory_order_relaxed);
}

void *fa_stream_owner(struct fa_stream *stream)
{
	return stream->owner;
}

struct fa_stream *fa_stream_free(struct fa_stream *stream)
{
	if (stream)
		fa_completion_records_unref(stream->records_ref);
	free(stream);
	return NULL;
}

/* They must reach the engine before any message about them. */
static void send_staged(struct fa_engine *engine)
{
	if (fa_list_empty(&engine->staged))
		return;
	fa_engine_lock(engine);
	fa_list_splice(&engine->inbox.submitted, &engine->staged);
	pthread_mutex_unlock(&engine->mailbox_mutex);
	engine->n_staged = 0;
	engine->inbox_posted = true;
	fa_engine_wake(engine);
}

/* Hands staged jobs directly to the scheduler. The inbox is drained; the caller holds
 * state_mutex. */
static void receive_staged(struct fa_engine *engine)
{
	if (engine->inbox_posted)
		fa_engine_drain_inbox(engine);
	engine->inbox_posted = false;
	while (!fa_list_empty(&engine->staged)) {
		struct fa_job *job = fa_job_first(&engine->staged);

		fa_list_remove(&job->link);
		fa_stream_receive(job->stream, job);
	}
	engine->n_staged = 0;
}

void fa_engine_submit(struct fa_engine *engine, struct fa_job *job)
{
	struct fa_stream *stream = job->stream;

	assert(job->value == stream->next_value);
	stream->next_value++;
	fa_list_append(&stream->index[job->value % FA_STREAM_CHAINS], &job->index_link);
	fa_list_init(&job->cancel_link);
	fa_list_init(&job->answer_link);
	job->confirming = false;
	job->cancel_status = 0;
	job->end_status = 0;
	job->started_ns = job->finished_ns = 0;
	job->state = FA_JOB_WAITING;
	job->delivered = false;
	job->chain_ended = false;
	job->deadline = (struct fa_deadline){ 0 };
	fa_engine_count(&engine->stats.submitted, 1);

	fa_list_append(&engine->staged, &job->link);
	engine->n_staged++;
	engine->n_batched += engine->batching;
	if (!engine->batching || engine->n_staged >= STAGED_MAX)
		send_staged(engine);
}

void fa_engine_prewake(struct fa_engine *engine)
{
	fa_parker_prewake(&engine->parker);
}

void fa_engine_batch_begin(struct fa_engine *engine)
{
	engine->batching = true;
}

void fa_engine_batch_end(struct fa_engine *engine)
{
	engine->batching = false;
	engine->n_batched = 0;
	send_staged(engine);
}

/* The engine thread launches a large batch while this thread reads. Handling a lost device may take
 * long. */
static bool may_poll(struct fa_engine *engine)
{
	if (!engine->polled || engine->n_batched > 1 ||
	    (engine->ops->is_lost && engine->ops->is_lost(engine->device)))
		return false;
	return !fa_list_empty(&engine->staged) ||
	       atomic_load_explicit(&engine->needs_polling, memory_order_relaxed);
}

bool fa_engine_poll(struct fa_engine *engine)
{
	uint64_t n_polls = atomic_load_explicit(&engine->loop_poll_count, memory_order_relaxed);
	const bool may = may_poll(engine);
	bool polled_before, more;

	engine->batching = false;
	engine->n_batched = 0;
	if (!may || pthread_mutex_trylock(&engine->state_mutex) != 0) {
		send_staged(engine);
		return false;
	}
	/* The engine thread clears the flag under state_mutex, too. */
	polled_before = atomic_load_explicit(&engine->loop_polls, memory_order_relaxed);
	if (!polled_before)
		atomic_store_explicit(&engine->loop_polls, true, memory_order_relaxed);
	/* Only this thread writes the counter. */
	atomic_store_explicit(&engine->loop_poll_count, n_polls + 1, memory_order_relaxed);
	receive_staged(engine);
	fa_engine_iterate(engine, LOOP_LAUNCHES);
	more = fa_engine_can_launch(engine);
	pthread_mutex_unlock(&engine->state_mutex);
	/* The engine thread is to stand by, in case this thread comes back late. */
	if (more || !polled_before)
		fa_engine_wake(engine);
	return more;
}

void fa_engine_poll_end(struct fa_engine *engine)
{
	if (!atomic_exchange_explicit(&engine->loop_polls, false, memory_order_relaxed))
		return;
	fa_engine_wake(engine);
}

void fa_engine_complete_empty(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                              const struct fa_outcome *outcome)
{
	/* No race: the engine thread publishes only jobs, and the stream has none. */
	assert(value == stream->next_value);
	stream->next_value++;
	fa_engine_count(&engine->stats.submitted, 1);
	fa_engine_count(&engine->stats.finished, 1);
	if (outcome->status)
		fa_engine_count(outcome->status == -ECANCELED ? &engine->stats.cancelled
		                                              : &engine->stats.failed,
		                1);
	fa_stream_publish(stream, value, outcome);
}

static void answer(struct fa_engine *engine, struct fa_job *job, int status,
                   const struct fa_error *error)
{
	send_staged(engine);
	fa_engine_lock(engine);
	if (!job->delivered) {
		job->answer = status;
		if (status)
			job->answer_error = *error;
		fa_list_append(&engine->inbox.answered, &job->answer_link);
	}
	pthread_mutex_unlock(&engine->mailbox_mutex);
	engine->inbox_posted = true;
	fa_engine_wake(engine);
}

void fa_engine_release(struct fa_engine *engine, struct fa_job *job, int status,
                       const struct fa_error *error)
{
	answer(engine, job, status, error);
}

void fa_engine_confirm(struct fa_engine *engine, struct fa_job *job, int status,
                       const struct fa_error *error)
{
	bool more;

	job->confirming = false;
	/* The engine thread handles a lost device. */
	if ((engine->ops->is_lost && engine->ops->is_lost(engine->device)) ||
	    pthread_mutex_trylock(&engine->state_mutex) != 0) {
		answer(engine, job, status, error);
		return;
	}
	job->answer = status;
	if (status)
		job->answer_error = *error;
	more = fa_engine_finish_confirmed(engine, job);
	pthread_mutex_unlock(&engine->state_mutex);
	if (more)
		fa_engine_wake(engine);
}

/* NULL: the job was taken. */
static struct fa_job *find_job(struct fa_stream *stream, uint64_t value)
{
	struct fa_list *pos, *chain = &stream->index[value % FA_STREAM_CHAINS];

	fa_list_for_each(pos, chain) {
		struct fa_job *job = fa_container_of(pos, struct fa_job, index_link);

		if (job->value == value)
			return job;
	}
	return NULL;
}

static void cancel_one(struct fa_engine *engine, struct fa_job *job, int status)
{
	if (job->cancel_status)
		return;
	job->cancel_status = status ? status : -ECANCELED;

	send_staged(engine);
	fa_engine_lock(engine);
	if (!job->delivered)
		fa_list_append(&engine->inbox.cancelled, &job->cancel_link);
	pthread_mutex_unlock(&engine->mailbox_mutex);
	engine->inbox_posted = true;
}

void fa_engine_cancel(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                      int status)
{
	struct fa_job *first = find_job(stream, value), *job, *before;

	if (!first || first->cancel_status)
		return;
	while (first->chained && (before = find_job(stream, first->value - 1)))
		first = before;
	for (job = first; job && (job == first || job->chained);
	     job = find_job(stream, job->value + 1))
		cancel_one(engine, job, status);
	fa_engine_wake(engine);
}

void fa_engine_stream_close(struct fa_engine *engine, struct fa_stream *stream, int status)
{
	stream->close_status = status ? status : -ECANCELED;
	send_staged(engine);
	fa_engine_lock(engine);
	fa_list_append(&engine->inbox.closing, &stream->link);
	pthread_mutex_unlock(&engine->mailbox_mutex);
	engine->inbox_posted = true;
	fa_engine_wake(engine);
}

bool fa_engine_has_events(struct fa_engine *engine)
{
	return !fa_list_empty(&engine->taken_finished) || !fa_list_empty(&engine->taken_confirms) ||
	       !fa_list_empty(&engine->taken_closed) ||
	       atomic_load_explicit(&engine->has_events, memory_order_relaxed);
}

bool fa_engine_take(struct fa_engine *engine, struct fa_job **ret_job,
                    struct fa_stream **ret_closed)
{
	struct fa_job *job = NULL;
	struct fa_stream *closed = NULL;

	if (fa_list_empty(&engine->taken_finished) && fa_list_empty(&engine->taken_confirms) &&
	    fa_list_empty(&engine->taken_closed) &&
	    atomic_load_explicit(&engine->has_events, memory_order_relaxed)) {
		fa_engine_lock(engine);
		atomic_store_explicit(&engine->has_events, false, memory_order_relaxed);
		fa_list_splice(&engine->taken_finished, &engine->outbox.finished);
		fa_list_splice(&engine->taken_confirms, &engine->outbox.confirms);
		fa_list_splice(&engine->taken_closed, &engine->outbox.closed);
		pthread_mutex_unlock(&engine->mailbox_mutex);
	}
	if (!fa_list_empty(&engine->taken_finished)) {
		job = fa_job_first(&engine->taken_finished);
		fa_list_remove(&job->link);
		fa_list_remove(&job->index_link);
	} else if (!fa_list_empty(&engine->taken_confirms)) {
		job = fa_container_of(engine->taken_confirms.next, struct fa_job, answer_link);
		fa_list_remove(&job->answer_link);
		job->confirming = true;
	} else if (!fa_list_empty(&engine->taken_closed)) {
		closed = fa_container_of(engine->taken_closed.next, struct fa_stream, link);
		fa_list_remove(&closed->link);
	} else {
		return false;
	}
	*ret_job = job;
	*ret_closed = closed;
	return true;
}

struct fa_list *fa_stream_link(struct fa_stream *stream)
{
	return &stream->link;
}

struct fa_stream *fa_stream_of_link(struct fa_list *link)
{
	return fa_container_of(link, struct fa_stream, link);
}

bool fa_engine_heartbeat(struct fa_engine *engine)
{
	const uint64_t asked = atomic_load_explicit(&engine->heartbeats_asked,
	                                            memory_order_relaxed);

	if (atomic_load_explicit(&engine->heartbeats_answered, memory_order_relaxed) != asked)
		return false;
	atomic_store_explicit(&engine->heartbeats_asked, asked + 1, memory_order_relaxed);
	fa_engine_wake(engine);
	return true;
}

void fa_engine_stats(struct fa_engine *engine, struct fa_engine_stats *ret_stats)
{
	*ret_stats = (struct fa_engine_stats){
		.submitted = atomic_load_explicit(&engine->stats.submitted, memory_order_relaxed),
		.finished = atomic_load_explicit(&engine->stats.finished, memory_order_relaxed),
		.launched = atomic_load_explicit(&engine->stats.launched, memory_order_relaxed),
		.cancelled = atomic_load_explicit(&engine->stats.cancelled, memory_order_relaxed),
		.failed = atomic_load_explicit(&engine->stats.failed, memory_order_relaxed),
		.busy_ns = atomic_load_explicit(&engine->stats.busy_ns, memory_order_relaxed),
	};
}
