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
	pthread_mutex_lock(&engine->mutex);
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
static void publish(struct fa_request *request)
{
	struct fa_stream *stream = request->stream;

	atomic_store_explicit(&stream->finished, request->value, memory_order_release);
	if (request->status)
		atomic_store_explicit(&stream->slot->failed, request->value, memory_order_relaxed);
	atomic_store_explicit(&stream->slot->completed, request->value, memory_order_release);
}

static void deliver(struct fa_engine *engine)
{
	uint64_t now_ns, finished = 0, cancelled = 0, failed = 0;
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
	pthread_mutex_lock(&engine->mutex);
	was_empty = fa_list_empty(&engine->outbox.requests) &&
	            fa_list_empty(&engine->outbox.confirms) &&
	            fa_list_empty(&engine->outbox.closed);
	fa_list_for_each(pos, &engine->done) {
		request = fa_container_of(pos, struct fa_request, link);
		fa_list_remove(&request->cancel_link);
		fa_list_remove(&request->answer_link);
		request->delivered = true;
		publish(request);
	}
	fa_list_splice(&engine->outbox.requests, &engine->done);
	fa_list_splice(&engine->outbox.confirms, &engine->confirms);
	fa_list_splice(&engine->outbox.closed, &engine->closed);
	pthread_mutex_unlock(&engine->mutex);
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

/* Returns when there may be news. */
static void wait_for_news(struct fa_engine *engine)
{
	uint64_t until_ns = engine->deadlines.root ? engine->deadlines.root->at_ns : FA_NS_NEVER;

	if (engine->polled && engine->n_running)
		fa_waiter_poll(&engine->waiter, until_ns);
	else
		fa_waiter_wait(&engine->waiter, until_ns);
}

static void *run(void *userdata)
{
	struct fa_engine *engine = userdata;

	/* Sleeps between two looks at a device are short, and to be no longer. */
	if (engine->polled)
		(void)prctl(PR_SET_TIMERSLACK, 1UL);
	for (;;) {
		if (fa_waiter_look(&engine->waiter)) {
			if (atomic_load_explicit(&engine->stop, memory_order_relaxed))
				return NULL;
			receive(engine);
		}
		reap(engine);
		expire(engine);
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
	fa_list_init(&engine->done);
	fa_list_init(&engine->confirms);
	fa_list_init(&engine->closed);
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
	*ret_stream = stream;
	return 0;
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
	free(stream);
	return NULL;
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
	request->deadline = (struct fa_deadline){ 0 };
	fa_engine_count(&engine->stats.submitted, 1);

	pthread_mutex_lock(&engine->mutex);
	fa_list_append(&engine->inbox.submitted, &request->link);
	pthread_mutex_unlock(&engine->mutex);
	fa_engine_wake(engine);
}

/* A request that was ended meanwhile needs no answer. */
static void answer(struct fa_engine *engine, struct fa_request *request, int status,
                   const struct fa_error *error)
{
	pthread_mutex_lock(&engine->mutex);
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

void fa_engine_cancel(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                      int status)
{
	struct fa_request *request = NULL;
	struct fa_list *pos, *chain = &stream->index[value % FA_STREAM_CHAINS];

	fa_list_for_each(pos, chain) {
		request = fa_container_of(pos, struct fa_request, index_link);
		if (request->value == value)
			break;
	}
	if (pos == chain || request->cancel_status)
		return;
	request->cancel_status = status ? status : -ECANCELED;

	pthread_mutex_lock(&engine->mutex);
	if (!request->delivered)
		fa_list_append(&engine->inbox.cancelled, &request->cancel_link);
	pthread_mutex_unlock(&engine->mutex);
	fa_engine_wake(engine);
}

void fa_engine_stream_close(struct fa_engine *engine, struct fa_stream *stream, int status)
{
	stream->close_status = status ? status : -ECANCELED;
	pthread_mutex_lock(&engine->mutex);
	fa_list_append(&engine->inbox.closing, &stream->link);
	pthread_mutex_unlock(&engine->mutex);
	fa_engine_wake(engine);
}

bool fa_engine_take(struct fa_engine *engine, struct fa_request **ret_request,
                    struct fa_stream **ret_closed)
{
	struct fa_request *request = NULL;
	struct fa_stream *closed = NULL;

	if (fa_list_empty(&engine->taken_requests) && fa_list_empty(&engine->taken_confirms) &&
	    fa_list_empty(&engine->taken_closed)) {
		pthread_mutex_lock(&engine->mutex);
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
