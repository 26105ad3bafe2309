/*
 * The engine thread and its two mailboxes.
 *
 * Ownership: a request belongs to the engine thread between receive() and
 * deliver(), and so does a stream's second half; its first half is the loop
 * thread's. What crosses lies in `inbox` and `outbox`, under the mutex, as lists
 * linked through the objects themselves: nothing is allocated after the start,
 * so nothing can fail.
 *
 * A request is waiting (behind others, or for room on the device), running (the
 * device has it), or settled (its status stands). Settled requests leave in the
 * stream's order, whatever the order in which they settled.
 *
 * Sleeping: `signal` is the only word. Whoever has news exchanges it for
 * SIGNALLED, after the news was written; only if it was ASLEEP is there a system
 * call. The engine exchanges it for AWAKE before it looks for news, and sleeps
 * only if it can change it from AWAKE to ASLEEP; so what came after the look
 * makes it look again.
 */
#include "daemon/engine.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>

/* Chains of the index from values to requests of one stream. */
#define INDEX_CHAINS 64
/* Launches between two looks for news, so that decode does not wait for a crowd. */
#define LAUNCHES_A_ROUND 16
/* Longest spin before sleeping; a sleep that was shorter makes spinning worth it. */
#define SPIN_MAX_NS (50 * FA_NS_PER_US)
#define SPIN_MIN_NS (5 * FA_NS_PER_US)

enum signal {
	AWAKE,
	SIGNALLED,
	ASLEEP,
};

enum request_state {
	WAITING,
	RUNNING,
	SETTLED,
};

enum priority_class {
	HIGH,
	NORMAL,
	_CLASS_N,
};

struct fa_stream {
	struct fa_engine *engine;
	void *owner;
	struct fa_completion_slot *slot; /* written only: what it holds is never believed */
	int priority;

	/* The loop thread's. */
	uint64_t next_value;
	struct fa_list index[INDEX_CHAINS]; /* requests not taken yet */

	/* Crosses over. */
	struct fa_list link; /* inbox.closing, then outbox.closed */
	int close_status;

	/* The engine thread's. */
	struct fa_device_queue *queue; /* made with the first launch */
	struct fa_list started;        /* running, or settled and not at the head */
	struct fa_list waiting;        /* behind those; waiting, or settled already */
	struct fa_list runnable_link;  /* engine.runnable, if something can be launched */
	unsigned int outstanding;      /* running requests */
	bool closing;
	_Atomic uint64_t finished;
};

struct fa_engine {
	void (*notify)(void *userdata);
	void *userdata;

	const struct fa_device_ops *ops;
	struct fa_device *device;
	unsigned int depth;
	pthread_t thread;
	bool started;

	_Atomic uint32_t signal;
	atomic_bool stop;

	pthread_mutex_t mutex;
	struct {
		struct fa_list submitted, cancelled; /* requests */
		struct fa_list closing;              /* streams */
	} inbox;
	struct {
		struct fa_list requests;
		struct fa_list closed; /* streams; their requests are out before them */
	} outbox;

	/* The loop thread's: taken out of the outbox in one go. */
	struct fa_list taken_requests, taken_closed;

	/* The engine thread's. */
	struct fa_list runnable[_CLASS_N]; /* streams, each in its turn */
	struct fa_list done, closed;       /* on the way to the outbox */
	struct fa_deadlines deadlines;
	uint64_t spin_ns;
	bool may_spin;

	struct {
		_Atomic uint64_t submitted, finished, launched, cancelled, failed, busy_ns;
	} stats;
};

static void count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* ---- requests, on the engine thread */

static void request_settle(struct fa_request *request, int status)
{
	fa_deadlines_remove(&request->stream->engine->deadlines, &request->deadline);
	request->status = status;
	request->state = SETTLED;
}

static void request_explain(struct fa_request *request, int status)
{
	const char *when = request->state == WAITING ? "queued" : "running";

	if (status == -ETIMEDOUT)
		fa_fail(&request->error, status, "the deadline passed while the request was %s",
		        when);
	else if (status == -ECANCELED)
		fa_fail(&request->error, status, "the request was cancelled while it was %s", when);
	else
		fa_fail(&request->error, status, "the request was ended while it was %s: %s", when,
		        strerrordesc_np(-status));
}

/* Ends a request early; the caller updates the stream. */
static void request_end(struct fa_request *request, int status)
{
	struct fa_engine *engine = request->stream->engine;

	if (request->state == WAITING) {
		request_explain(request, status);
		request_settle(request, status);
	} else if (request->state == RUNNING && !request->end_status) {
		fa_deadlines_remove(&engine->deadlines, &request->deadline);
		request->end_status = status;
		engine->ops->cancel(engine->device, &request->work);
	}
}

static void request_reaped(struct fa_request *request)
{
	int status = request->work.status, end = request->end_status;

	request->started_ns = request->work.started_ns;
	request->finished_ns = request->work.finished_ns;
	if (request->started_ns)
		count(&request->stream->engine->stats.busy_ns,
		      request->finished_ns - request->started_ns);

	/* A cancel that came too late changes nothing. A deadline that passed did pass,
	 * though the device could not stop. */
	if (end && (status == -ECANCELED || (!status && end == -ETIMEDOUT))) {
		request_explain(request, end);
		status = end;
	} else if (status) {
		request->error = request->work.error;
	}
	request_settle(request, status);
	request->stream->outstanding--;
}

/* ---- streams, on the engine thread */

static struct fa_request *first_request(struct fa_list *list)
{
	return fa_container_of(list->next, struct fa_request, link);
}

/* Brings everything that follows from the state of its requests up to date. */
static void stream_update(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;
	struct fa_request *request;
	struct fa_list *head;

	for (;;) {
		head = fa_list_empty(&stream->started) ? &stream->waiting : &stream->started;
		request = first_request(head);
		if (fa_list_empty(head) || request->state != SETTLED)
			break;
		fa_list_remove(&request->link);
		fa_list_append(&engine->done, &request->link);
	}

	if (fa_list_empty(&stream->waiting) || stream->outstanding >= engine->depth)
		fa_list_remove(&stream->runnable_link);
	else if (fa_list_empty(&stream->runnable_link))
		fa_list_append(&engine->runnable[stream->priority > 0 ? HIGH : NORMAL],
		               &stream->runnable_link);

	if (stream->closing && fa_list_empty(&stream->started) && fa_list_empty(&stream->waiting)) {
		if (stream->queue)
			stream->queue = engine->ops->queue_free(engine->device, stream->queue);
		stream->closing = false;
		fa_list_append(&engine->closed, &stream->link);
	}
}

/* Launches the stream's next request. */
static void stream_launch(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;
	struct fa_request *request;
	int r = 0;

	do {
		request = first_request(&stream->waiting);
		fa_list_remove(&request->link);
		fa_list_append(&stream->started, &request->link);
	} while (request->state == SETTLED && !fa_list_empty(&stream->waiting));

	if (request->state == WAITING) {
		if (!stream->queue)
			r = engine->ops->queue_new(engine->device, NULL, stream->priority,
			                           &request->error, &stream->queue);
		if (r < 0) {
			request_settle(request, r);
		} else {
			request->state = RUNNING;
			request->work.params = &request->params;
			stream->outstanding++;
			count(&engine->stats.launched, 1);
			engine->ops->launch(engine->device, stream->queue, &request->work);
		}
	}
	stream_update(stream);
}

static void stream_end(struct fa_stream *stream, int status)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &stream->started)
		request_end(fa_container_of(pos, struct fa_request, link), status);
	fa_list_for_each(pos, &stream->waiting)
		request_end(fa_container_of(pos, struct fa_request, link), status);
	stream->closing = true;
	stream_update(stream);
}

/* ---- the thread */

/* What came in: requests first, since a cancel or close that came after them is
 * looked at in the same round. */
static void receive(struct fa_engine *engine)
{
	struct fa_list submitted, cancelled, closing;
	struct fa_request *request;
	struct fa_stream *stream;

	fa_list_init(&submitted);
	fa_list_init(&cancelled);
	fa_list_init(&closing);
	pthread_mutex_lock(&engine->mutex);
	fa_list_splice(&submitted, &engine->inbox.submitted);
	fa_list_splice(&cancelled, &engine->inbox.cancelled);
	fa_list_splice(&closing, &engine->inbox.closing);
	pthread_mutex_unlock(&engine->mutex);

	while (!fa_list_empty(&submitted)) {
		request = first_request(&submitted);
		fa_list_remove(&request->link);
		fa_list_append(&request->stream->waiting, &request->link);
		if (request->status)
			request->state = SETTLED;
		else if (request->deadline_ns != FA_NS_NEVER)
			fa_deadlines_insert(&engine->deadlines, &request->deadline,
			                    request->deadline_ns);
		stream_update(request->stream);
	}
	while (!fa_list_empty(&cancelled)) {
		request = fa_container_of(cancelled.next, struct fa_request, cancel_link);
		fa_list_remove(&request->cancel_link);
		request_end(request, request->cancel_status);
		stream_update(request->stream);
	}
	while (!fa_list_empty(&closing)) {
		stream = fa_container_of(closing.next, struct fa_stream, link);
		fa_list_remove(&stream->link);
		stream_end(stream, stream->close_status);
	}
}

static void reap(struct fa_engine *engine)
{
	struct fa_request *request;
	struct fa_list works;

	fa_list_init(&works);
	engine->ops->reap(engine->device, &works);
	while (!fa_list_empty(&works)) {
		request = fa_container_of(works.next, struct fa_request, work.link);
		fa_list_remove(&request->work.link);
		request_reaped(request);
		stream_update(request->stream);
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
		request_end(request, -ETIMEDOUT);
		stream_update(request->stream);
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

	if (fa_list_empty(&engine->done) && fa_list_empty(&engine->closed))
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
	count(&engine->stats.finished, finished);
	count(&engine->stats.cancelled, cancelled);
	count(&engine->stats.failed, failed);

	/* Published under the mutex: a client that saw it cannot be faster, with what it
	 * sends next, than the loop thread can take this request. */
	pthread_mutex_lock(&engine->mutex);
	was_empty = fa_list_empty(&engine->outbox.requests) &&
	            fa_list_empty(&engine->outbox.closed);
	fa_list_for_each(pos, &engine->done) {
		request = fa_container_of(pos, struct fa_request, link);
		fa_list_remove(&request->cancel_link);
		request->delivered = true;
		publish(request);
	}
	fa_list_splice(&engine->outbox.requests, &engine->done);
	fa_list_splice(&engine->outbox.closed, &engine->closed);
	pthread_mutex_unlock(&engine->mutex);
	if (was_empty)
		engine->notify(engine->userdata);
}

static struct fa_stream *next_runnable(struct fa_engine *engine)
{
	for (int i = 0; i < _CLASS_N; i++)
		if (!fa_list_empty(&engine->runnable[i]))
			return fa_container_of(engine->runnable[i].next, struct fa_stream,
			                       runnable_link);
	return NULL;
}

/* One launch a stream and turn; a stream that has more goes to the end. */
static void launch(struct fa_engine *engine)
{
	struct fa_stream *stream;

	for (int i = 0; i < LAUNCHES_A_ROUND; i++) {
		stream = next_runnable(engine);
		if (!stream)
			return;
		fa_list_remove(&stream->runnable_link);
		stream_launch(stream);
	}
}

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Returns true if there are news. */
static bool spin(struct fa_engine *engine)
{
	uint64_t end_ns;

	if (!engine->spin_ns)
		return false;
	end_ns = fa_now_ns() + engine->spin_ns;
	do {
		for (int i = 0; i < 32; i++) {
			if (atomic_load_explicit(&engine->signal, memory_order_relaxed) ==
			    SIGNALLED)
				return true;
			cpu_relax();
		}
	} while (fa_now_ns() < end_ns);
	return false;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t deadline_ns)
{
	struct timespec timeout = {
		.tv_sec = (time_t)(deadline_ns / FA_NS_PER_SEC),
		.tv_nsec = (long)(deadline_ns % FA_NS_PER_SEC),
	};

	/* Absolute, CLOCK_MONOTONIC. Why it returned does not matter. */
	(void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value,
	              deadline_ns == FA_NS_NEVER ? NULL : &timeout, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wait_for_news(struct fa_engine *engine)
{
	uint64_t until_ns, before_ns, slept_ns;
	uint32_t awake = AWAKE;

	if (spin(engine))
		return;
	if (!atomic_compare_exchange_strong(&engine->signal, &awake, ASLEEP))
		return;
	until_ns = engine->deadlines.root ? engine->deadlines.root->at_ns : FA_NS_NEVER;
	if (!engine->may_spin) {
		futex_wait(&engine->signal, ASLEEP, until_ns);
		return;
	}
	before_ns = fa_now_ns();
	futex_wait(&engine->signal, ASLEEP, until_ns);
	slept_ns = fa_now_ns() - before_ns;
	if (slept_ns > SPIN_MAX_NS)
		engine->spin_ns = 0;
	else if (engine->spin_ns < SPIN_MAX_NS)
		engine->spin_ns = engine->spin_ns ? engine->spin_ns * 2 : SPIN_MIN_NS;
}

static void *run(void *userdata)
{
	struct fa_engine *engine = userdata;

	for (;;) {
		(void)atomic_exchange(&engine->signal, AWAKE);
		if (atomic_load_explicit(&engine->stop, memory_order_relaxed))
			return NULL;
		receive(engine);
		reap(engine);
		expire(engine);
		deliver(engine);
		launch(engine);
		if (!next_runnable(engine) && fa_list_empty(&engine->done) &&
		    fa_list_empty(&engine->closed))
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
	fa_list_init(&engine->inbox.closing);
	fa_list_init(&engine->outbox.requests);
	fa_list_init(&engine->outbox.closed);
	fa_list_init(&engine->taken_requests);
	fa_list_init(&engine->taken_closed);
	for (int i = 0; i < _CLASS_N; i++)
		fa_list_init(&engine->runnable[i]);
	fa_list_init(&engine->done);
	fa_list_init(&engine->closed);
	*ret_engine = engine;
	return 0;
}

int fa_engine_start(struct fa_engine *engine, struct fa_device *device)
{
	struct fa_device_info info;
	sigset_t all, old;
	cpu_set_t cpus;
	int r;

	engine->device = device;
	engine->ops->describe(device, &info);
	engine->depth = info.depth;
	engine->may_spin = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) > 2;

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

void fa_engine_wake(void *userdata)
{
	struct fa_engine *engine = userdata;

	if (atomic_exchange(&engine->signal, SIGNALLED) == ASLEEP)
		(void)syscall(SYS_futex, &engine->signal, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int fa_engine_stream_new(struct fa_engine *engine, int priority, struct fa_completion_slot *slot,
                         uint64_t first, void *owner, struct fa_stream **ret_stream)
{
	struct fa_stream *stream;

	stream = fa_new(struct fa_stream);
	if (!stream)
		return -ENOMEM;
	stream->engine = engine;
	stream->owner = owner;
	stream->slot = slot;
	stream->priority = priority;
	stream->next_value = first;
	stream->finished = first - 1;
	for (int i = 0; i < INDEX_CHAINS; i++)
		fa_list_init(&stream->index[i]);
	fa_list_init(&stream->link);
	fa_list_init(&stream->started);
	fa_list_init(&stream->waiting);
	fa_list_init(&stream->runnable_link);
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
	fa_list_append(&stream->index[request->value % INDEX_CHAINS], &request->index_link);
	fa_list_init(&request->cancel_link);
	request->cancel_status = 0;
	request->end_status = 0;
	request->started_ns = request->finished_ns = 0;
	request->state = WAITING;
	request->delivered = false;
	request->deadline = (struct fa_deadline){ 0 };
	count(&engine->stats.submitted, 1);

	pthread_mutex_lock(&engine->mutex);
	fa_list_append(&engine->inbox.submitted, &request->link);
	pthread_mutex_unlock(&engine->mutex);
	fa_engine_wake(engine);
}

void fa_engine_cancel(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                      int status)
{
	struct fa_request *request = NULL;
	struct fa_list *pos, *chain = &stream->index[value % INDEX_CHAINS];

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

	if (fa_list_empty(&engine->taken_requests) && fa_list_empty(&engine->taken_closed)) {
		pthread_mutex_lock(&engine->mutex);
		fa_list_splice(&engine->taken_requests, &engine->outbox.requests);
		fa_list_splice(&engine->taken_closed, &engine->outbox.closed);
		pthread_mutex_unlock(&engine->mutex);
	}
	if (!fa_list_empty(&engine->taken_requests)) {
		request = first_request(&engine->taken_requests);
		fa_list_remove(&request->link);
		fa_list_remove(&request->index_link);
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
