/*
 * The life of requests and streams on the engine thread: what may start, in whose
 * turn, and what follows when a request has ended.
 */
#include "daemon/engine/private.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>

static void stream_update(struct fa_stream *stream);

/* Requests of a stream that the device waits with for their gates. */
#define GATES_AHEAD 2
/* After that many that it gave up in a row, 2 to that many more are not left to it. */
#define GATES_IN_VAIN_MAX 6

/* ---- requests */

static void request_settle(struct fa_job *request, int status)
{
	fa_deadline_heap_remove(&request->stream->engine->deadlines, &request->deadline);
	request->status = status;
	request->state = FA_JOB_SETTLED;
}

static void request_explain(struct fa_job *request, int status)
{
	const char *when = request->state == FA_JOB_WAITING ? "queued" : "running";

	if (status == -ENODEV)
		fa_fail(&request->error, status, "the device was lost: %s",
		        request->stream->engine->lost_reason.text);
	else if (status == -ETIMEDOUT)
		fa_fail(&request->error, status, "the deadline passed while the request was %s",
		        when);
	else if (status == -ECANCELED)
		fa_fail(&request->error, status, "the request was cancelled while it was %s", when);
	else
		fa_fail(&request->error, status, "the request was ended while it was %s: %s", when,
		        strerrordesc_np(-status));
}

static bool has_work(const struct fa_job *request)
{
	return request->work.op != FA_DEVICE_NONE;
}

/* The loop thread has the rest of it. */
static void request_confirm(struct fa_job *request)
{
	struct fa_engine *engine = request->stream->engine;

	fa_deadline_heap_remove(&engine->deadlines, &request->deadline);
	request->state = FA_JOB_CONFIRMING;
	fa_list_append(&engine->confirms, &request->answer_link);
}

/* The caller updates the stream. */
static void request_end(struct fa_job *request, int status)
{
	struct fa_engine *engine = request->stream->engine;

	if (engine->lost)
		status = -ENODEV;
	if (request->state == FA_JOB_WAITING ||
	    (request->state == FA_JOB_RUNNING && !has_work(request))) {
		request_explain(request, status);
		request_settle(request, status);
	} else if (request->state == FA_JOB_RUNNING && !request->end_status) {
		fa_deadline_heap_remove(&engine->deadlines, &request->deadline);
		request->end_status = status;
		engine->ops->cancel(engine->device, &request->work);
	}
}

void fa_job_end(struct fa_job *request, int status)
{
	request_end(request, status);
	stream_update(request->stream);
}

void fa_job_answered(struct fa_job *request)
{
	request->held = false;
	if (request->state == FA_JOB_CONFIRMING ||
	    (request->answer && request->state != FA_JOB_SETTLED)) {
		if (request->answer)
			request->error = request->answer_error;
		request_settle(request, request->answer);
	}
	stream_update(request->stream);
}

/* Puts one of the last that were started among those that wait, where others may be back
 * already. */
static void request_put_back(struct fa_job *request)
{
	struct fa_list *pos, *waiting = &request->stream->waiting;

	fa_list_remove(&request->link);
	fa_list_for_each(pos, waiting)
		if (fa_container_of(pos, struct fa_job, link)->value > request->value)
			break;
	fa_list_append(pos, &request->link);
}

/* The device has given up looking at its gate, and has done nothing: it waits as before. */
static void request_return(struct fa_job *request)
{
	struct fa_stream *stream = request->stream;

	stream->outstanding--;
	stream->engine->n_running--;
	request->behind_gate = false;
	request->state = FA_JOB_WAITING;
	request_put_back(request);
	if (stream->gates_in_vain < GATES_IN_VAIN_MAX)
		++stream->gates_in_vain;
	stream->gates_rest = 1u << stream->gates_in_vain;
	stream_update(stream);
}

void fa_job_reaped(struct fa_job *request)
{
	int status = request->work.status, end = request->end_status;
	struct fa_stream *stream = request->stream;

	stream->n_behind_gates -= request->behind_gate;
	if (request->work.shut && !end) {
		request_return(request);
		return;
	}
	if (request->work.shut)
		status = -ECANCELED;
	else if (request->behind_gate && !status)
		stream->gates_in_vain = 0;
	request->behind_gate = false;

	if (stream->engine->lost && end)
		end = -ENODEV;

	request->started_ns = request->work.started_ns;
	request->finished_ns = request->work.finished_ns;
	if (request->started_ns)
		fa_engine_count(&stream->engine->stats.busy_ns,
		                request->finished_ns - request->started_ns);

	/* What it was chained to has failed: it is of no use, however far it came. */
	if (request->chain_ended && (!status || status == -ECANCELED)) {
		request->error = stream->chain_error;
		status = stream->chain_status;
		end = 0;
	}
	/* A cancel that came too late changes nothing. A deadline that passed did pass,
	 * though the device could not stop. */
	if (end && (status == -ECANCELED || (!status && end == -ETIMEDOUT))) {
		request_explain(request, end);
		status = end;
	} else if (status && !request->chain_ended) {
		request->error = request->work.error;
	}
	if (!status && request->confirms)
		request_confirm(request);
	else
		request_settle(request, status);
	stream->outstanding--;
	stream->engine->n_running--;
	/* It leaves behind those ahead of it, which the device may have given back. */
	if (!fa_list_empty(&stream->waiting) &&
	    fa_job_first(&stream->waiting)->value < request->value)
		request_put_back(request);
	stream_update(stream);
}

/* ---- streams */

static void group_trim(struct fa_engine_group *group)
{
	struct fa_engine *engine = group->engine;

	if (group->device && !group->n_queues)
		group->device = engine->ops->group_free(engine->device, group->device);
}

static int queue_new(struct fa_stream *stream, struct fa_error *error)
{
	struct fa_engine_group *group = stream->group;
	struct fa_engine *engine = stream->engine;
	int r = 0;

	if (!group->device)
		r = engine->ops->group_new(engine->device, error, &group->device);
	if (r == 0)
		r = engine->ops->queue_new(engine->device, group->device, stream->priority, error,
		                           &stream->queue);
	if (r == 0)
		group->n_queues++;
	group_trim(group);
	return r;
}

static void queue_free(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;

	stream->queue = engine->ops->queue_free(engine->device, stream->queue);
	stream->group->n_queues--;
	group_trim(stream->group);
}

/* It stays where it is until its gates open; that of a lost device are all open. */
static bool is_gated(const struct fa_job *request)
{
	return request->state == FA_JOB_WAITING && request->gates &&
	       !request->stream->engine->lost && !fa_gates_met(request->gates);
}

/* Whether the first one that waits, whose gates are shut, can go to the device all the same: then
 * that looks at the last of them in the engine's place, and hands over without a processor. */
static bool device_may_wait(const struct fa_stream *stream, const struct fa_job *request)
{
	const struct fa_engine *engine = stream->engine;

	return engine->ops->may_wait && stream->queue && has_work(request) && !stream->gates_rest &&
	       stream->n_behind_gates < GATES_AHEAD && fa_gates_last(request->gates, NULL) &&
	       engine->ops->may_wait(engine->device, stream->queue, &request->work);
}

/* Whether something of the stream can be started. What the device may give back has nothing behind
 * it that would then be ahead of it, or end before it: but others that come back with it. */
static bool can_launch(const struct fa_stream *stream)
{
	const struct fa_job *request = fa_job_first((struct fa_list *)&stream->waiting);

	if (fa_list_empty(&stream->waiting))
		return false;
	if (stream->gated ? !device_may_wait(stream, request) : stream->n_behind_gates > 0)
		return false;
	if (request->state != FA_JOB_WAITING || !has_work(request))
		return true;
	return !request->held && stream->outstanding < stream->engine->depth;
}

/* Has the gates of the first one that waits looked at, if they are what it waits for. */
static void stream_watch(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;
	struct fa_job *request = NULL;

	if (!fa_list_empty(&stream->waiting))
		request = fa_job_first(&stream->waiting);
	if (request && !is_gated(request))
		request = NULL;
	if (request == stream->gated)
		return;
	fa_list_remove(&stream->gate_link);
	fa_deadline_heap_remove(&engine->gate_looks, &stream->gate_look);
	stream->gated = request;
	if (!request)
		return;
	stream->gated_ns = fa_now_ns();
	fa_list_append(&engine->gated, &stream->gate_link);
}

/* The one before it has left with an error. */
static void chain_end(struct fa_stream *stream, struct fa_job *request)
{
	if (request->state == FA_JOB_CONFIRMING || request->chain_ended)
		return;
	request->chain_ended = true;
	if (request->state == FA_JOB_RUNNING && has_work(request)) {
		request_end(request, stream->chain_status);
		return;
	}
	request->error = stream->chain_error;
	/* Also one that was refused: perhaps it was so because of the one before. */
	request_settle(request, stream->chain_status);
}

/* Brings everything that follows from the state of its requests up to date. */
static void stream_update(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;
	struct fa_job *request;
	struct fa_list *head;

	for (;;) {
		head = fa_list_empty(&stream->started) ? &stream->waiting : &stream->started;
		request = fa_job_first(head);
		if (fa_list_empty(head))
			break;
		if (request->chained && stream->chain_status)
			chain_end(stream, request);
		if (request->state == FA_JOB_RUNNING && !has_work(request) && !request->held) {
			if (request->confirms)
				request_confirm(request);
			else
				request_settle(request, 0);
		}
		if (request->state != FA_JOB_SETTLED)
			break;
		fa_list_remove(&request->link);
		fa_list_append(&engine->done, &request->link);
		stream->chain_status = request->status;
		if (request->status)
			stream->chain_error = request->error;
	}

	stream_watch(stream);
	if (!can_launch(stream))
		fa_fair_queue_remove(&engine->turns, &stream->group->turns, &stream->turn_link);
	else if (fa_list_empty(&stream->turn_link))
		fa_fair_queue_add(&engine->turns, &stream->group->turns,
		                  fa_fair_queue_class(stream->priority), &stream->turn_link);

	if (stream->closing && fa_list_empty(&stream->started) && fa_list_empty(&stream->waiting)) {
		if (stream->queue)
			queue_free(stream);
		stream->closing = false;
		fa_list_append(&engine->closed, &stream->link);
	}
}

void fa_stream_receive(struct fa_stream *stream, struct fa_job *request)
{
	fa_list_append(&stream->waiting, &request->link);
	if (request->status)
		request->state = FA_JOB_SETTLED;
	else if (request->deadline_ns != FA_NS_NEVER)
		fa_deadline_heap_insert(&stream->engine->deadlines, &request->deadline,
		                        request->deadline_ns);
	stream_update(stream);
}

/* Nothing will ever run again; they leave behind those that the device still has. */
static void end_waiting(struct fa_stream *stream)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &stream->waiting)
		request_end(fa_container_of(pos, struct fa_job, link), -ENODEV);
	fa_list_splice(&stream->started, &stream->waiting);
	stream_update(stream);
}

/* Launches the stream's next request. */
static void stream_launch(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;
	struct fa_job *request;
	int r = 0;

	/* The device may have changed its mind about gates. */
	if (!can_launch(stream)) {
		stream_update(stream);
		return;
	}
	do {
		request = fa_job_first(&stream->waiting);
		request->behind_gate = request == stream->gated;
		fa_list_remove(&request->link);
		fa_list_append(&stream->started, &request->link);
		/* The next one may wait for something. */
		stream_watch(stream);
	} while (request->state == FA_JOB_SETTLED && can_launch(stream));

	if (request->state == FA_JOB_WAITING && !has_work(request)) {
		request->state = FA_JOB_RUNNING;
	} else if (request->state == FA_JOB_WAITING) {
		if (!stream->queue)
			r = queue_new(stream, &request->error);
		if (r < 0) {
			request_settle(request, r);
		} else {
			request->state = FA_JOB_RUNNING;
			request->work.params = &request->params;
			request->work.early = NULL;
			if (request->early)
				request->work.early = atomic_load_explicit(&stream->early,
				                                           memory_order_relaxed);
			request->work.early_value = (uint32_t)request->value;
			request->work.gate = (struct fa_device_wait){};
			if (request->behind_gate)
				(void)fa_gates_last(request->gates, &request->work.gate);
			else if (request->gates && stream->gates_rest)
				stream->gates_rest--;
			stream->n_behind_gates += request->behind_gate;
			stream->outstanding++;
			engine->n_running++;
			fa_engine_count(&engine->stats.launched, 1);
			/* Prefills that end meanwhile are no reason to look for it seldom. */
			if (engine->polled && stream->priority > 0)
				engine->urgent = true;
			engine->ops->launch(engine->device, stream->queue, &request->work);
		}
	}
	stream_update(stream);
}

void fa_stream_end(struct fa_stream *stream, int status)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &stream->started)
		request_end(fa_container_of(pos, struct fa_job, link), status);
	fa_list_for_each(pos, &stream->waiting)
		request_end(fa_container_of(pos, struct fa_job, link), status);
	stream->closing = true;
	stream_update(stream);
}

/* ---- gates */

/* Looked at all the time for so long; what takes longer is not quick. */
#define GATE_LOOK_NS (200 * FA_NS_PER_US)
/* Then between sleeps: a part of the time waited so far, and at most so much; and at most
 * so much more once nobody counts milliseconds. */
#define GATE_PAUSE_PART 16
#define GATE_PAUSE_MAX_NS FA_NS_PER_MS
#define GATE_LONG_NS FA_NS_PER_SEC
#define GATE_LONG_PAUSE_MAX_NS (8 * FA_NS_PER_MS)
/* Gates that one round looks at, of each kind, so that other news do not wait for a crowd. */
#define GATES_A_ROUND 64

static uint64_t gate_pause_ns(uint64_t waited_ns)
{
	uint64_t max_ns = waited_ns < GATE_LONG_NS ? GATE_PAUSE_MAX_NS : GATE_LONG_PAUSE_MAX_NS;

	return waited_ns / GATE_PAUSE_PART < max_ns ? waited_ns / GATE_PAUSE_PART : max_ns;
}

/* Those that are new, or have not waited for long: each in turn. */
static void look_often(struct fa_engine *engine, uint64_t now_ns)
{
	struct fa_list due;

	fa_list_init(&due);
	fa_list_splice(&due, &engine->gated);
	for (int i = 0; i < GATES_A_ROUND && !fa_list_empty(&due); i++) {
		struct fa_stream *stream = fa_container_of(due.next, struct fa_stream, gate_link);

		fa_list_remove(&stream->gate_link);
		if (!is_gated(stream->gated))
			stream_update(stream);
		else if (now_ns - stream->gated_ns < GATE_LOOK_NS)
			fa_list_append(&engine->gated, &stream->gate_link);
		else
			fa_deadline_heap_insert(&engine->gate_looks, &stream->gate_look,
			                        now_ns + gate_pause_ns(now_ns - stream->gated_ns));
	}
	/* What was left out comes first. */
	fa_list_splice(&due, &engine->gated);
	fa_list_splice(&engine->gated, &due);
}

static void look_seldom(struct fa_engine *engine, uint64_t now_ns)
{
	struct fa_deadline *first;

	for (int i = 0; i < GATES_A_ROUND; i++) {
		struct fa_stream *stream;

		first = engine->gate_looks.root;
		if (!first || first->at_ns > now_ns)
			return;
		stream = fa_container_of(first, struct fa_stream, gate_look);
		fa_deadline_heap_remove(&engine->gate_looks, first);
		if (is_gated(stream->gated))
			fa_deadline_heap_insert(&engine->gate_looks, first,
			                        now_ns + gate_pause_ns(now_ns - stream->gated_ns));
		else
			stream_update(stream);
	}
}

bool fa_engine_gate_is_open(const struct fa_engine *engine)
{
	const struct fa_list *pos;
	int n = 0;

	fa_list_for_each(pos, &engine->gated) {
		if (!is_gated(fa_container_of(pos, const struct fa_stream, gate_link)->gated))
			return true;
		if (++n == GATES_A_ROUND)
			break;
	}
	return false;
}

void fa_engine_look_at_gates(struct fa_engine *engine)
{
	uint64_t now_ns;

	if (fa_list_empty(&engine->gated) && !engine->gate_looks.root)
		return;
	now_ns = fa_now_ns();
	look_often(engine, now_ns);
	look_seldom(engine, now_ns);
}

/* ---- turns */

void fa_engine_launch_next(struct fa_engine *engine)
{
	struct fa_stream *stream = fa_container_of(fa_fair_queue_next(&engine->turns),
	                                           struct fa_stream, turn_link);

	fa_fair_queue_charge(&engine->turns, &stream->group->turns, 1);
	if (engine->lost)
		end_waiting(stream);
	else
		stream_launch(stream);
}
