/*
 * The engine thread and its two mailboxes.
 *
 * Ownership: a request belongs to the engine thread between receive() and
 * deliver(), and so does a stream's second half; its first half is the loop
 * thread's. What crosses lies in `inbox` and `outbox`, under the mutex, as lists
 * linked through the objects themselves: nothing is allocated after the start,
 * so nothing can fail.
 */
#include "daemon/engine_private.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>

/* Launches between two looks for news, so that decode does not wait for a crowd. */
#define LAUNCHES_A_ROUND 16
/* Looks at gates between two looks at everything else. */
#define LOOKS_A_ROUND 32

/* Attempts at the mutex before its other holder is slept for. */
#define LOCK_TRIES 200

/* It is held for a few stores, and often just when the other thread, which polls, sees the
 * first of them: to sleep then, and be woken, would take longer than a request does. */
static void lock(struct fa_engine *engine)
{
	for (int i = 0; engine->waiter.may_spin && i < LOCK_TRIES; i++) {
		if (pthread_mutex_trylock(&engine->mutex) == 0)
			return;
		fa_waiter_relax(&engine->waiter);
	}
	pthread_mutex_lock(&engine->mutex);
}

/* ---- the thread */

/* What came in: requests first, since a cancel or close that came after them is
 * looked at in the same round. */
static void receive(struct fa_engine *engine)
{
	struct fa_list submitted, cancelled, answered, closing;
	struct fa_request *request;
	struct fa_stream *stream;

	fa_list_init(&submitted);
	fa_list_init(&cancelled);
	fa_list_init(&answered);
	fa_list_init(&closing);
	lock(engine);
	fa_list_splice(&submitted, &engine->inbox.submitted);
	fa_list_splice(&cancelled, &engine->inbox.cancelled);
	fa_list_splice(&answered, &engine->inbox.answered);
	fa_list_splice(&closing, &engine->inbox.closing);
	pthread_mutex_unlock(&engine->mutex);

	while (!fa_list_empty(&submitted)) {
		request = fa_request_first(&submitted);
		fa_list_remove(&request->link);
		fa_stream_receive(request->stream, request);
	}
	while (!fa_list_empty(&cancelled)) {
		request = fa_container_of(cancelled.next, struct fa_request, cancel_link);
		fa_list_remove(&request->cancel_link);
		fa_request_end(request, request->cancel_status);
	}
	while (!fa_list_empty(&answered)) {
		request = fa_container_of(answered.next, struct fa_request, answer_link);
		fa_list_remove(&request->answer_link);
		fa_request_answered(request);
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
	struct fa_request *request;
	struct fa_list works;

	fa_list_init(&works);
	engine->ops->reap(engine->device, &works);
	look_after_device(engine);
	if (engine->polled && !fa_list_empty(&works))
		fa_waiter_came(&engine->waiter);
	while (!fa_list_empty(&works)) {
		request = fa_container_of(works.next, struct fa_request, work.link);
		fa_list_remove(&request->work.link);
		fa_request_reaped(request);
	}
}

static void expire(struct fa_engine *engine)
{
	struct fa_request *request;
	uint64_t now_ns;

	if (!engine->deadlines.root)
		return;
	now_ns = fa_now_ns();
	while (engine->deadlines.root && engine->deadlines.root->at_ns <= now_ns) {
		request = fa_container_of(engine->deadlines.root, struct fa_request, deadline);
		fa_request_end(request, -ETIMEDOUT);
	}
}

/* The private word, which alone releases anything, and then what the client sees. */
static void publish(struct fa_stream *stream, uint64_t value, const struct fa_outcome *outcome)
{
	struct fa_results *results = atomic_load_explicit(&stream->results, memory_order_acquire);

	atomic_store_explicit(&stream->finished, value, memory_order_release);
	if (results)
		fa_results_record(results, stream->id, value, outcome);
	if (outcome->status)
		atomic_store_explicit(&stream->slot->failed, value, memory_order_relaxed);
	atomic_store_explicit(&stream->slot->completed, value, memory_order_release);
}

static void publish_request(struct fa_request *request)
{
	const struct fa_outcome outcome = {
		.status = request->status,
		.queued_ns = request->queued_ns,
		.started_ns = request->started_ns,
		.finished_ns = request->finished_ns,
	};

	publish(request->stream, request->value, &outcome);
	if (request->gates)
		fa_gates_signal(request->gates, request->status);
}

/* Those who sleep for something that was just published, each once and with a reference:
 * they are woken without the mutex, when their streams may have gone. */
static struct fa_results *find_sleepers(const struct fa_list *done)
{
	struct fa_results *sleepers = NULL, *last = NULL;
	const struct fa_list *pos;

	fa_list_for_each(pos, done) {
		const struct fa_stream *stream =
			fa_container_of(pos, const struct fa_request, link)->stream;
		struct fa_results *results = atomic_load_explicit(&stream->results,
		                                                  memory_order_acquire);

		if (!results || results == last)
			continue;
		last = results;
		if (!fa_ring_must_wake(fa_results_words(results)))
			continue;
		results->next = sleepers;
		sleepers = fa_results_ref(results);
	}
	return sleepers;
}

static void wake_sleepers(struct fa_results *sleepers)
{
	while (sleepers) {
		struct fa_results *results = sleepers;

		sleepers = results->next;
		fa_results_wake(results);
		fa_results_unref(results);
	}
}

static void deliver(struct fa_engine *engine)
{
	uint64_t now_ns, finished = 0, cancelled = 0, failed = 0;
	struct fa_results *sleepers;
	struct fa_request *request;
	struct fa_list *pos;
	bool was_empty;

	if (fa_list_empty(&engine->done) && fa_list_empty(&engine->confirms) &&
	    fa_list_empty(&engine->closed))
		return;
	now_ns = fa_now_ns();
	fa_list_for_each(pos, &engine->done) {
		request = fa_container_of(pos, struct fa_request, link);
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
	lock(engine);
	was_empty = fa_list_empty(&engine->outbox.requests) &&
	            fa_list_empty(&engine->outbox.confirms) &&
	            fa_list_empty(&engine->outbox.closed);
	atomic_store_explicit(&engine->has_news, true, memory_order_relaxed);
	fa_list_for_each(pos, &engine->done) {
		request = fa_container_of(pos, struct fa_request, link);
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

static void launch(struct fa_engine *engine)
{
	if (engine->polled && !fa_turns_empty(&engine->turns))
		fa_waiter_expect(&engine->waiter);
	for (int i = 0; i < LAUNCHES_A_ROUND && !fa_turns_empty(&engine->turns); i++)
		fa_engine_launch_next(engine);
}

/* Looks at gates alone for a moment, where a device says when it has finished: to ask it
 * takes a lock that its own threads need. */
static void wait_at_gates(struct fa_engine *engine)
{
	int looks = engine->polled || !engine->waiter.may_spin ? 1 : LOOKS_A_ROUND;

	while (looks-- && !fa_waiter_is_woken(&engine->waiter) && !fa_engine_gate_is_open(engine))
		fa_waiter_relax(&engine->waiter);
}

/* Returns when there may be news. */
static void wait_for_news(struct fa_engine *engine)
{
	uint64_t until_ns = engine->deadlines.root ? engine->deadlines.root->at_ns : FA_NS_NEVER;

	if (engine->gate_looks.root && engine->gate_looks.root->at_ns < until_ns)
		until_ns = engine->gate_looks.root->at_ns;
	if (!fa_list_empty(&engine->gated))
		wait_at_gates(engine);
	else if (engine->polled && engine->n_running)
		fa_waiter_poll(&engine->waiter, until_ns);
	else if (engine->gate_looks.root)
		fa_waiter_sleep(&engine->waiter, until_ns);
	else
		fa_waiter_wait(&engine->waiter, until_ns);
}

static void *run(void *userdata)
{
	struct fa_engine *engine = userdata;

	/* Sleeps between two looks at a device or a gate are short, and to be no longer. */
	(void)prctl(PR_SET_TIMERSLACK, 1UL);
	for (;;) {
		if (fa_waiter_look(&engine->waiter)) {
			if (atomic_load_explicit(&engine->stop, memory_order_relaxed))
				return NULL;
			receive(engine);
		}
		reap(engine);
		expire(engine);
		fa_engine_look_at_gates(engine);
		deliver(engine);
		launch(engine);
		if (fa_turns_empty(&engine->turns) && fa_list_empty(&engine->done) &&
		    fa_list_empty(&engine->confirms) && fa_list_empty(&engine->closed))
			wait_for_news(engine);
	}
}

/* ---- for other threads */

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
	fa_waiter_init(&engine->waiter);

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&engine->thread, NULL, run, engine);
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
	fa_waiter_deinit(&engine->waiter);
	pthread_mutex_destroy(&engine->mutex);
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
	(void)fa_waiter_listen(&engine->waiter, fd);
}

void fa_engine_wake(void *userdata)
{
	struct fa_engine *engine = userdata;

	fa_waiter_wake(&engine->waiter);
}

int fa_engine_group_new(struct fa_engine *engine, struct fa_engine_group **ret_group)
{
	struct fa_engine_group *group;

	group = fa_new(struct fa_engine_group);
	if (!group)
		return -ENOMEM;
	group->engine = engine;
	fa_turns_group_init(&group->turns);
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

void fa_engine_stream_record(struct fa_stream *stream, struct fa_results *results, uint32_t id)
{
	stream->results_ref = fa_results_ref(results);
	stream->id = id;
	atomic_store_explicit(&stream->results, results, memory_order_release);
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
		fa_results_unref(stream->results_ref);
	free(stream);
	return NULL;
}

/* What was submitted reaches the engine before anything that is said of it. */
static void send_staged(struct fa_engine *engine)
{
	if (fa_list_empty(&engine->staged))
		return;
	lock(engine);
	fa_list_splice(&engine->inbox.submitted, &engine->staged);
	pthread_mutex_unlock(&engine->mutex);
	fa_engine_wake(engine);
}

void fa_engine_submit(struct fa_engine *engine, struct fa_request *request)
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
	request->state = FA_REQUEST_WAITING;
	request->delivered = false;
	request->chain_ended = false;
	request->deadline = (struct fa_deadline){ 0 };
	fa_engine_count(&engine->stats.submitted, 1);

	fa_list_append(&engine->staged, &request->link);
	if (!engine->batching)
		send_staged(engine);
}

void fa_engine_prepare(struct fa_engine *engine)
{
	fa_waiter_prepare(&engine->waiter);
}

void fa_engine_batch_begin(struct fa_engine *engine)
{
	engine->batching = true;
}

void fa_engine_batch_end(struct fa_engine *engine)
{
	engine->batching = false;
	send_staged(engine);
}

void fa_engine_pass(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                    uint64_t now_ns)
{
	const struct fa_outcome outcome = { .queued_ns = now_ns, .finished_ns = now_ns };

	/* The engine thread touches these words for requests alone: the last was taken, and
	 * the next will be submitted, under the mutex. */
	assert(value == stream->next_value);
	stream->next_value++;
	fa_engine_count(&engine->stats.submitted, 1);
	fa_engine_count(&engine->stats.finished, 1);
	publish(stream, value, &outcome);
}

/* A request that was ended meanwhile needs no answer. */
static void answer(struct fa_engine *engine, struct fa_request *request, int status,
                   const struct fa_error *error)
{
	send_staged(engine);
	lock(engine);
	if (!request->delivered) {
		request->answer = status;
		if (status)
			request->answer_error = *error;
		fa_list_append(&engine->inbox.answered, &request->answer_link);
	}
	pthread_mutex_unlock(&engine->mutex);
	fa_engine_wake(engine);
}

void fa_engine_release(struct fa_engine *engine, struct fa_request *request, int status,
                       const struct fa_error *error)
{
	answer(engine, request, status, error);
}

void fa_engine_confirm(struct fa_engine *engine, struct fa_request *request, int status,
                       const struct fa_error *error)
{
	request->confirming = false;
	answer(engine, request, status, error);
}

/* One that was not taken yet; NULL: there is none. */
static struct fa_request *find_request(struct fa_stream *stream, uint64_t value)
{
	struct fa_list *pos, *chain = &stream->index[value % FA_STREAM_CHAINS];

	fa_list_for_each(pos, chain) {
		struct fa_request *request = fa_container_of(pos, struct fa_request, index_link);

		if (request->value == value)
			return request;
	}
	return NULL;
}

static void cancel_one(struct fa_engine *engine, struct fa_request *request, int status)
{
	if (request->cancel_status)
		return;
	request->cancel_status = status ? status : -ECANCELED;

	send_staged(engine);
	lock(engine);
	if (!request->delivered)
		fa_list_append(&engine->inbox.cancelled, &request->cancel_link);
	pthread_mutex_unlock(&engine->mutex);
}

void fa_engine_cancel(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                      int status)
{
	struct fa_request *first = find_request(stream, value), *request, *before;

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
	lock(engine);
	fa_list_append(&engine->inbox.closing, &stream->link);
	pthread_mutex_unlock(&engine->mutex);
	fa_engine_wake(engine);
}

bool fa_engine_has_news(struct fa_engine *engine)
{
	return !fa_list_empty(&engine->taken_requests) || !fa_list_empty(&engine->taken_confirms) ||
	       !fa_list_empty(&engine->taken_closed) ||
	       atomic_load_explicit(&engine->has_news, memory_order_relaxed);
}

bool fa_engine_take(struct fa_engine *engine, struct fa_request **ret_request,
                    struct fa_stream **ret_closed)
{
	struct fa_request *request = NULL;
	struct fa_stream *closed = NULL;

	if (fa_list_empty(&engine->taken_requests) && fa_list_empty(&engine->taken_confirms) &&
	    fa_list_empty(&engine->taken_closed) &&
	    atomic_load_explicit(&engine->has_news, memory_order_relaxed)) {
		lock(engine);
		atomic_store_explicit(&engine->has_news, false, memory_order_relaxed);
		fa_list_splice(&engine->taken_requests, &engine->outbox.requests);
		fa_list_splice(&engine->taken_confirms, &engine->outbox.confirms);
		fa_list_splice(&engine->taken_closed, &engine->outbox.closed);
		pthread_mutex_unlock(&engine->mutex);
	}
	if (!fa_list_empty(&engine->taken_requests)) {
		request = fa_request_first(&engine->taken_requests);
		fa_list_remove(&request->link);
		fa_list_remove(&request->index_link);
	} else if (!fa_list_empty(&engine->taken_confirms)) {
		request = fa_container_of(engine->taken_confirms.next, struct fa_request,
		                          answer_link);
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
