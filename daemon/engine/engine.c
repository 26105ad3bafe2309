/*
 * The engine as other threads see it, and its two mailboxes.
 *
 * Ownership: a request belongs to the engine thread between fa_stream_receive() and
 * deliver(), and so does a stream's second half; its first half is the loop
 * thread's. What crosses lies in `inbox` and `outbox`, under the mutex, as lists
 * linked through the objects themselves: nothing is allocated after the start,
 * so nothing can fail.
 *
 * What is the engine thread's is so by the mutex `round`: the loop thread runs rounds, too,
 * while it attends, and what it submits needs no inbox then. It never waits for that mutex;
 * the engine thread leaves it alone while the loop thread's beats are heard.
 */
#include "daemon/engine/private.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>

/* The loop thread launches so many in a round: its rings wait meanwhile. */
#define LAUNCHES_ATTENDED 1
/* Requests of a batch go to the engine when there are so many: it launches them while the next are
 * read. As many as a stream of a GPU holds; fewer would take the mutex more often. */
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
	pthread_mutex_init(&engine->mutex, NULL);
	pthread_mutex_init(&engine->round, NULL);
	fa_list_init(&engine->inbox.submitted);
	fa_list_init(&engine->inbox.cancelled);
	fa_list_init(&engine->inbox.answered);
	fa_list_init(&engine->inbox.closing);
	fa_list_init(&engine->outbox.requests);
	fa_list_init(&engine->outbox.confirms);
	fa_list_init(&engine->outbox.closed);
	fa_list_init(&engine->taken_requests);
	fa_list_init(&engine->taken_confirms);
	fa_list_init(&engine->taken_closed);
	fa_list_init(&engine->staged);
	fa_list_init(&engine->done);
	fa_list_init(&engine->confirms);
	fa_list_init(&engine->closed);
	fa_list_init(&engine->gated);
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
	fa_parker_init(&engine->waiter);

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&engine->thread, NULL, fa_engine_run, engine);
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
	fa_parker_deinit(&engine->waiter);
	pthread_mutex_destroy(&engine->mutex);
	pthread_mutex_destroy(&engine->round);
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

void fa_engine_listen(struct fa_engine *engine, int fd)
{
	(void)fa_parker_listen(&engine->waiter, fd);
}

void fa_engine_wake(void *userdata)
{
	struct fa_engine *engine = userdata;

	fa_parker_wake(&engine->waiter);
}

int fa_engine_group_new(struct fa_engine *engine, struct fa_engine_group **ret_group)
{
	struct fa_engine_group *group;

	group = fa_new(struct fa_engine_group);
	if (!group)
		return -ENOMEM;
	group->engine = engine;
	fa_fair_queue_group_init(&group->turns);
	*ret_group = group;
	return 0;
}

struct fa_engine_group *fa_engine_group_free(struct fa_engine_group *group)
{
	if (!group)
		return NULL;
	/* Freed with its last queue, before the last stream came out. */
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
	stream->finished = first - 1;
	for (int i = 0; i < FA_STREAM_CHAINS; i++)
		fa_list_init(&stream->index[i]);
	fa_list_init(&stream->link);
	fa_list_init(&stream->started);
	fa_list_init(&stream->waiting);
	fa_list_init(&stream->turn_link);
	fa_list_init(&stream->gate_link);
	*ret_stream = stream;
	return 0;
}

void fa_engine_stream_record(struct fa_stream *stream, struct fa_completion_records *results,
                             uint32_t id)
{
	stream->results_ref = fa_completion_records_ref(results);
	stream->id = id;
	atomic_store_explicit(&stream->results, results, memory_order_release);
}

void fa_engine_stream_early(struct fa_stream *stream, uint32_t *words)
{
	atomic_store_explicit(&stream->early, words, memory_order_relaxed);
}

void *fa_stream_owner(struct fa_stream *stream)
{
	return stream->owner;
}

uint64_t fa_stream_finished(struct fa_stream *stream)
{
	return atomic_load_explicit(&stream->finished, memory_order_acquire);
}

struct fa_stream *fa_stream_free(struct fa_stream *stream)
{
	if (stream)
		fa_completion_records_unref(stream->results_ref);
	free(stream);
	return NULL;
}

/* What was submitted reaches the engine before anything that is said of it. */
static void send_staged(struct fa_engine *engine)
{
	if (fa_list_empty(&engine->staged))
		return;
	fa_engine_lock(engine);
	fa_list_splice(&engine->inbox.submitted, &engine->staged);
	pthread_mutex_unlock(&engine->mutex);
	engine->n_staged = 0;
	engine->posted = true;
	fa_engine_wake(engine);
}

/* Hands them over without the inbox; what is in there came before. Has the mutex `round`. */
static void receive_staged(struct fa_engine *engine)
{
	if (engine->posted)
		fa_engine_receive(engine);
	engine->posted = false;
	while (!fa_list_empty(&engine->staged)) {
		struct fa_job *request = fa_job_first(&engine->staged);

		fa_list_remove(&request->link);
		fa_stream_receive(request->stream, request);
	}
	engine->n_staged = 0;
}

void fa_engine_submit(struct fa_engine *engine, struct fa_job *request)
{
	struct fa_stream *stream = request->stream;

	assert(request->value == stream->next_value);
	stream->next_value++;
	fa_list_append(&stream->index[request->value % FA_STREAM_CHAINS], &request->index_link);
	fa_list_init(&request->cancel_link);
	fa_list_init(&request->answer_link);
	request->confirming = false;
	request->cancel_status = 0;
	request->end_status = 0;
	request->started_ns = request->finished_ns = 0;
	request->state = FA_JOB_WAITING;
	request->delivered = false;
	request->chain_ended = false;
	request->deadline = (struct fa_deadline){ 0 };
	fa_engine_count(&engine->stats.submitted, 1);

	fa_list_append(&engine->staged, &request->link);
	engine->n_staged++;
	engine->n_batched += engine->batching;
	if (!engine->batching || engine->n_staged >= STAGED_MAX)
		send_staged(engine);
}

void fa_engine_prepare(struct fa_engine *engine)
{
	fa_parker_prepare(&engine->waiter);
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

/* Of many requests the engine thread launches one while the next are read here; and what is to
 * be done when the device is lost may take long. */
static bool may_attend(struct fa_engine *engine)
{
	if (!engine->polled || engine->n_batched > 1 ||
	    (engine->ops->is_lost && engine->ops->is_lost(engine->device)))
		return false;
	return !fa_list_empty(&engine->staged) ||
	       atomic_load_explicit(&engine->due, memory_order_relaxed);
}

bool fa_engine_attend(struct fa_engine *engine)
{
	uint64_t beats = atomic_load_explicit(&engine->beats, memory_order_relaxed);
	const bool may = may_attend(engine);
	bool attended, more;

	engine->batching = false;
	engine->n_batched = 0;
	if (!may || pthread_mutex_trylock(&engine->round) != 0) {
		send_staged(engine);
		return false;
	}
	/* Under the mutex, as where the engine thread takes it back. */
	attended = atomic_load_explicit(&engine->attended, memory_order_relaxed);
	if (!attended)
		atomic_store_explicit(&engine->attended, true, memory_order_relaxed);
	/* Nobody else counts them. */
	atomic_store_explicit(&engine->beats, beats + 1, memory_order_relaxed);
	receive_staged(engine);
	fa_engine_round(engine, LAUNCHES_ATTENDED);
	more = !fa_fair_queue_empty(&engine->turns);
	pthread_mutex_unlock(&engine->round);
	/* From now on it looks after what is due, in case that this thread is late. */
	if (more || !attended)
		fa_engine_wake(engine);
	return more;
}

void fa_engine_unattend(struct fa_engine *engine)
{
	if (!atomic_exchange_explicit(&engine->attended, false, memory_order_relaxed))
		return;
	fa_engine_wake(engine);
}

void fa_engine_pass(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                    uint64_t now_ns)
{
	const struct fa_outcome outcome = { .queued_ns = now_ns, .finished_ns = now_ns };

	/* The engine thread touches these words for requests alone: the last was taken, and
	 * the next will be handed over, under a mutex. */
	assert(value == stream->next_value);
	stream->next_value++;
	fa_engine_count(&engine->stats.submitted, 1);
	fa_engine_count(&engine->stats.finished, 1);
	fa_stream_publish(stream, value, &outcome);
}

/* A request that was ended meanwhile needs no answer. */
static void answer(struct fa_engine *engine, struct fa_job *request, int status,
                   const struct fa_error *error)
{
	send_staged(engine);
	fa_engine_lock(engine);
	if (!request->delivered) {
		request->answer = status;
		if (status)
			request->answer_error = *error;
		fa_list_append(&engine->inbox.answered, &request->answer_link);
	}
	pthread_mutex_unlock(&engine->mutex);
	engine->posted = true;
	fa_engine_wake(engine);
}

void fa_engine_release(struct fa_engine *engine, struct fa_job *request, int status,
                       const struct fa_error *error)
{
	answer(engine, request, status, error);
}

void fa_engine_confirm(struct fa_engine *engine, struct fa_job *request, int status,
                       const struct fa_error *error)
{
	request->confirming = false;
	answer(engine, request, status, error);
}

/* One that was not taken yet; NULL: there is none. */
static struct fa_job *find_request(struct fa_stream *stream, uint64_t value)
{
	struct fa_list *pos, *chain = &stream->index[value % FA_STREAM_CHAINS];

	fa_list_for_each(pos, chain) {
		struct fa_job *request = fa_container_of(pos, struct fa_job, index_link);

		if (request->value == value)
			return request;
	}
	return NULL;
}

static void cancel_one(struct fa_engine *engine, struct fa_job *request, int status)
{
	if (request->cancel_status)
		return;
	request->cancel_status = status ? status : -ECANCELED;

	send_staged(engine);
	fa_engine_lock(engine);
	if (!request->delivered)
		fa_list_append(&engine->inbox.cancelled, &request->cancel_link);
	pthread_mutex_unlock(&engine->mutex);
	engine->posted = true;
}

void fa_engine_cancel(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                      int status)
{
	struct fa_job *first = find_request(stream, value), *request, *before;

	if (!first || first->cancel_status)
		return;
	while (first->chained && (before = find_request(stream, first->value - 1)))
		first = before;
	for (request = first; request && (request == first || request->chained);
	     request = find_request(stream, request->value + 1))
		cancel_one(engine, request, status);
	fa_engine_wake(engine);
}

void fa_engine_stream_close(struct fa_engine *engine, struct fa_stream *stream, int status)
{
	stream->close_status = status ? status : -ECANCELED;
	send_staged(engine);
	fa_engine_lock(engine);
	fa_list_append(&engine->inbox.closing, &stream->link);
	pthread_mutex_unlock(&engine->mutex);
	engine->posted = true;
	fa_engine_wake(engine);
}

bool fa_engine_has_news(struct fa_engine *engine)
{
	return !fa_list_empty(&engine->taken_requests) || !fa_list_empty(&engine->taken_confirms) ||
	       !fa_list_empty(&engine->taken_closed) ||
	       atomic_load_explicit(&engine->has_news, memory_order_relaxed);
}

bool fa_engine_take(struct fa_engine *engine, struct fa_job **ret_request,
                    struct fa_stream **ret_closed)
{
	struct fa_job *request = NULL;
	struct fa_stream *closed = NULL;

	if (fa_list_empty(&engine->taken_requests) && fa_list_empty(&engine->taken_confirms) &&
	    fa_list_empty(&engine->taken_closed) &&
	    atomic_load_explicit(&engine->has_news, memory_order_relaxed)) {
		fa_engine_lock(engine);
		atomic_store_explicit(&engine->has_news, false, memory_order_relaxed);
		fa_list_splice(&engine->taken_requests, &engine->outbox.requests);
		fa_list_splice(&engine->taken_confirms, &engine->outbox.confirms);
		fa_list_splice(&engine->taken_closed, &engine->outbox.closed);
		pthread_mutex_unlock(&engine->mutex);
	}
	if (!fa_list_empty(&engine->taken_requests)) {
		request = fa_job_first(&engine->taken_requests);
		fa_list_remove(&request->link);
		fa_list_remove(&request->index_link);
	} else if (!fa_list_empty(&engine->taken_confirms)) {
		request = fa_container_of(engine->taken_confirms.next, struct fa_job, answer_link);
		fa_list_remove(&request->answer_link);
		request->confirming = true;
	} else if (!fa_list_empty(&engine->taken_closed)) {
		closed = fa_container_of(engine->taken_closed.next, struct fa_stream, link);
		fa_list_remove(&closed->link);
	} else {
		return false;
	}
	*ret_request = request;
	*ret_closed = closed;
	return true;
}

bool fa_engine_pulse(struct fa_engine *engine)
{
	/* Nobody else counts them. */
	const uint64_t asked = atomic_load_explicit(&engine->pulses_asked, memory_order_relaxed);

	if (atomic_load_explicit(&engine->pulses, memory_order_relaxed) != asked)
		return false;
	atomic_store_explicit(&engine->pulses_asked, asked + 1, memory_order_relaxed);
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
