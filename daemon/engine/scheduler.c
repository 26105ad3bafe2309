/*
 * States of jobs and streams: which may launch, which is next, and what follows a job's end. With
 * state_mutex. A launchable stream is queued in its lane, or in the engine's own if its job needs
 * no device. Lanes with a free slot take turns; their groups share launches fairly.
 */
#include "daemon/engine/private.h"

#include "common/clock.h"
#include "daemon/base/trace.h"

#include <errno.h>
#include <string.h>

static void lane_free_slot(struct fa_engine *engine, struct fa_device_lane *lane);

/* Limits a stream's gated jobs on the device. */
#define DEVICE_GATES_MAX 2
/* After the device gave up n gates in a row, the engine itself keeps the next 2^n. */
#define GATE_BACKOFF_SHIFT_MAX 6

/* ---- jobs */

static void job_settle(struct fa_job *job, int status)
{
	fa_deadline_heap_remove(&job->stream->engine->deadlines, &job->deadline);
	job->status = status;
	job->state = FA_JOB_SETTLED;
}

static void job_explain(struct fa_job *job, int status)
{
	static const char was_queued[] = "the request was cancelled while it was queued";
	static const char was_running[] = "the request was cancelled while it was running";
	const bool queued = job->state == FA_JOB_WAITING;
	const char *when = queued ? "queued" : "running";

	/* Formatting takes long, and hundreds may be cancelled at once. */
	if (status == -ECANCELED && queued)
		memcpy(job->error.text, was_queued, sizeof(was_queued));
	else if (status == -ECANCELED)
		memcpy(job->error.text, was_running, sizeof(was_running));
	else if (status == -ENODEV)
		fa_fail(&job->error, status, "the device was lost: %s",
		        job->stream->engine->lost_reason.text);
	else if (status == -ETIMEDOUT)
		fa_fail(&job->error, status, "the deadline passed while the request was %s", when);
	else
		fa_fail(&job->error, status, "the request was ended while it was %s: %s", when,
		        strerrordesc_np(-status));
}

static bool has_work(const struct fa_job *job)
{
	return job->work.op != FA_DEVICE_NONE;
}

static void job_confirm(struct fa_job *job)
{
	struct fa_engine *engine = job->stream->engine;

	fa_deadline_heap_remove(&engine->deadlines, &job->deadline);
	job->state = FA_JOB_CONFIRMING;
	fa_list_append(&engine->confirms, &job->answer_link);
}

/* The caller then calls fa_stream_update(). */
static void job_end(struct fa_job *job, int status)
{
	struct fa_engine *engine = job->stream->engine;

	if (engine->lost)
		status = -ENODEV;
	if (job->state == FA_JOB_WAITING || (job->state == FA_JOB_RUNNING && !has_work(job))) {
		job_explain(job, status);
		job_settle(job, status);
	} else if (job->state == FA_JOB_RUNNING && !job->end_status) {
		fa_deadline_heap_remove(&engine->deadlines, &job->deadline);
		job->end_status = status;
		engine->ops->cancel(engine->device, &job->work);
	}
}

void fa_job_end(struct fa_job *job, int status)
{
	job_end(job, status);
	fa_stream_update(job->stream);
}

void fa_job_answered(struct fa_job *job)
{
	job->held = false;
	if (job->state == FA_JOB_CONFIRMING || (job->answer && job->state != FA_JOB_SETTLED)) {
		if (job->answer)
			job->error = job->answer_error;
		job_settle(job, job->answer);
	}
	fa_stream_update(job->stream);
}

static void job_put_back(struct fa_job *job)
{
	struct fa_list *pos, *waiting = &job->stream->waiting;

	fa_list_remove(&job->link);
	fa_list_for_each(pos, waiting)
		if (fa_container_of(pos, struct fa_job, link)->value > job->value)
			break;
	fa_list_append(pos, &job->link);
}

/* The device gave up on its gate and has done nothing. */
static void job_return(struct fa_job *job)
{
	struct fa_stream *stream = job->stream;

	stream->outstanding--;
	stream->engine->n_running--;
	job->device_gated = false;
	job->state = FA_JOB_WAITING;
	job_put_back(job);
	if (stream->gate_timeouts < GATE_BACKOFF_SHIFT_MAX)
		++stream->gate_timeouts;
	stream->gate_backoff = 1u << stream->gate_timeouts;
	fa_stream_update(stream);
}

void fa_job_reaped(struct fa_job *job)
{
	int status = job->work.status, end = job->end_status;
	struct fa_stream *stream = job->stream;

	lane_free_slot(stream->engine, stream->lane);
	stream->n_device_gated -= job->device_gated;
	if (job->work.gate_gave_up && !end) {
		job_return(job);
		return;
	}
	if (job->work.gate_gave_up)
		status = -ECANCELED;
	else if (job->device_gated && !status)
		stream->gate_timeouts = 0;
	job->device_gated = false;

	if (stream->engine->lost && end)
		end = -ENODEV;

	job->started_ns = job->work.started_ns;
	job->finished_ns = job->work.finished_ns;
	if (job->started_ns)
		fa_engine_count(&stream->engine->stats.busy_ns, job->finished_ns - job->started_ns);

	if (job->chain_ended && (!status || status == -ECANCELED)) {
		job->error = stream->chain_error;
		status = stream->chain_status;
		end = 0;
	}
	/* A late cancel has no effect. A missed deadline is reported even if the work succeeded. */
	if (end && (status == -ECANCELED || (!status && end == -ETIMEDOUT))) {
		job_explain(job, end);
		status = end;
	} else if (status && !job->chain_ended) {
		job->error = job->work.error;
	}
	if (!status && job->confirms)
		job_confirm(job);
	else
		job_settle(job, status);
	stream->outstanding--;
	stream->engine->n_running--;
	/* It leaves after its predecessors, which may be back in `waiting`. */
	if (!fa_list_empty(&stream->waiting) && fa_job_first(&stream->waiting)->value < job->value)
		job_put_back(job);
	fa_stream_update(stream);
}

/* ---- streams */

static void group_trim(struct fa_engine_group *group)
{
	struct fa_engine *engine = group->engine;

	if (group->device && !group->n_queues)
		group->device = engine->ops->group_free(engine->device, group->device);
}

static enum fa_engine_share share_of(const struct fa_stream *stream,
                                     const struct fa_device_lane *lane)
{
	if (lane == &stream->engine->lane)
		return FA_ENGINE_SHARE_OWN;
	return stream->priority > 0 ? FA_ENGINE_SHARE_HIGH : FA_ENGINE_SHARE_NORMAL;
}

static int queue_new(struct fa_stream *stream, struct fa_error *error)
{
	struct fa_engine_group *group = stream->group;
	struct fa_engine *engine = stream->engine;
	enum fa_engine_share share;
	int r = 0;

	if (!group->device)
		r = engine->ops->group_new(engine->device, error, &group->device);
	if (r == 0)
		r = engine->ops->queue_new(engine->device, group->device, stream->priority, error,
		                           &stream->queue);
	if (r == 0) {
		group->n_queues++;
		stream->lane = engine->ops->queue_lane ? engine->ops->queue_lane(stream->queue)
		                                       : &engine->lane;
		share = share_of(stream, stream->lane);
		/* Its use of another lane says nothing about this one. */
		if (!group->shares[share].n_streams++ && share != FA_ENGINE_SHARE_OWN)
			fa_fair_queue_group_init(&group->shares[share].queue);
	}
	group_trim(group);
	return r;
}

static void queue_free(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;

	stream->queue = engine->ops->queue_free(engine->device, stream->queue);
	stream->group->shares[share_of(stream, stream->lane)].n_streams--;
	stream->group->n_queues--;
	group_trim(stream->group);
}

/* ---- lanes */

static void lane_add(struct fa_device_lane *lane, struct fa_stream *stream)
{
	struct fa_fair_queue_group *share = &stream->group->shares[share_of(stream, lane)].queue;

	fa_fair_queue_add(&lane->queue, share, fa_fair_queue_class(stream->priority),
	                  &stream->run_link);
	stream->run_lane = lane;
	if (fa_list_empty(&lane->link))
		fa_list_append(&stream->engine->ready_lanes, &lane->link);
}

static void lane_remove(struct fa_stream *stream)
{
	struct fa_device_lane *lane = stream->run_lane;

	fa_fair_queue_remove(&lane->queue, &stream->group->shares[share_of(stream, lane)].queue,
	                     &stream->run_link);
	stream->run_lane = NULL;
	if (fa_fair_queue_empty(&lane->queue)) {
		fa_list_remove(&lane->link);
		lane->wanted = false;
	}
}

/* The stream stays next. */
static void lane_fill(struct fa_stream *stream)
{
	struct fa_device_lane *lane = stream->lane;

	if (stream->run_lane)
		fa_fair_queue_put_back(&stream->group->shares[share_of(stream, lane)].queue,
		                       fa_fair_queue_class(stream->priority), &stream->run_link);
	else
		lane_add(lane, stream);
	lane->wanted = true;
	fa_list_remove(&lane->link);
	fa_list_append(&stream->engine->full_lanes, &lane->link);
}

static void lane_free_slot(struct fa_engine *engine, struct fa_device_lane *lane)
{
	if (!lane->wanted)
		return;
	lane->wanted = false;
	engine->lane_freed = true;
	fa_list_remove(&lane->link);
	fa_list_append(&engine->ready_lanes, &lane->link);
}

static void defer(struct fa_stream *stream, struct fa_job *job)
{
	if (stream->run_lane)
		lane_remove(stream);
	stream->deferred_job = job;
	stream->lane->n_deferred++;
	fa_list_append(&stream->engine->deferred, &stream->deferred_link);
}

static void undefer(struct fa_stream *stream)
{
	stream->deferred_job = NULL;
	stream->lane->n_deferred--;
	fa_list_remove(&stream->deferred_link);
}

/* ---- gates and chains */

bool fa_job_is_gated(const struct fa_job *job)
{
	return job->state == FA_JOB_WAITING && job->gates && !job->stream->engine->lost &&
	       !fa_gates_met(job->gates);
}

/* True: @job waits first, and the device can poll its last gate. */
static bool device_can_wait(const struct fa_stream *stream, const struct fa_job *job)
{
	const struct fa_engine *engine = stream->engine;

	return engine->ops->can_wait && stream->queue && !stream->lane->wanted && has_work(job) &&
	       !stream->gate_backoff && stream->n_device_gated < DEVICE_GATES_MAX &&
	       fa_gates_last_wait(job->gates, NULL) &&
	       engine->ops->can_wait(engine->device, stream->queue, &job->work);
}

static bool needs_slot(const struct fa_job *job)
{
	return job->state == FA_JOB_WAITING && has_work(job);
}

/* Behind device-gated jobs, which may be returned, only such may start: others could overtake. */
static bool can_launch(const struct fa_stream *stream)
{
	const struct fa_job *job = fa_job_first((struct fa_list *)&stream->waiting);

	if (fa_list_empty(&stream->waiting))
		return false;
	if (stream->gated ? !device_can_wait(stream, job) : stream->n_device_gated > 0)
		return false;
	if (!needs_slot(job))
		return true;
	return !job->held && stream->outstanding < stream->engine->depth;
}

static struct fa_device_lane *lane_needed(struct fa_stream *stream)
{
	if (stream->queue && needs_slot(fa_job_first(&stream->waiting)))
		return stream->lane;
	return &stream->engine->lane;
}

/* Makes the queue at the first launch. If that fails, ends the job and returns false. */
static bool prepare_queue(struct fa_stream *stream)
{
	struct fa_job *job;
	int r;

	if (stream->queue || stream->engine->lost || !can_launch(stream))
		return true;
	job = fa_job_first(&stream->waiting);
	if (!needs_slot(job))
		return true;
	r = queue_new(stream, &job->error);
	if (r < 0)
		job_settle(job, r);
	return r == 0;
}

static void stream_watch(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;
	struct fa_job *job = NULL;

	if (!fa_list_empty(&stream->waiting))
		job = fa_job_first(&stream->waiting);
	if (job && !fa_job_is_gated(job))
		job = NULL;
	if (job == stream->gated)
		return;
	fa_list_remove(&stream->gate_link);
	fa_deadline_heap_remove(&engine->parked_gates, &stream->gate_parked);
	stream->gated = job;
	if (!job)
		return;
	stream->gated_ns = fa_now_ns();
	fa_list_append(&engine->hot_gates, &stream->gate_link);
}

static void chain_end(struct fa_stream *stream, struct fa_job *job)
{
	if (job->state == FA_JOB_CONFIRMING || job->chain_ended)
		return;
	job->chain_ended = true;
	if (job->state == FA_JOB_RUNNING && has_work(job)) {
		job_end(job, stream->chain_status);
		return;
	}
	job->error = stream->chain_error;
	/* Settles even a refused job: the predecessor's error may be the cause. */
	job_settle(job, stream->chain_status);
}

static void stream_enqueue(struct fa_stream *stream)
{
	struct fa_device_lane *lane = can_launch(stream) ? lane_needed(stream) : NULL;

	if (stream->deferred_job) {
		if (lane && stream->deferred_job == fa_job_first(&stream->waiting))
			return;
		undefer(stream);
	}
	if (lane == stream->run_lane)
		return;
	if (stream->run_lane)
		lane_remove(stream);
	if (lane)
		lane_add(lane, stream);
}

static void stream_finish_jobs(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;
	struct fa_job *job;
	struct fa_list *head;

	for (;;) {
		head = fa_list_empty(&stream->started) ? &stream->waiting : &stream->started;
		job = fa_job_first(head);
		if (fa_list_empty(head))
			break;
		if (job->chained && stream->chain_status)
			chain_end(stream, job);
		if (job->state == FA_JOB_RUNNING && !has_work(job) && !job->held) {
			if (job->confirms)
				job_confirm(job);
			else
				job_settle(job, 0);
		}
		if (job->state != FA_JOB_SETTLED)
			break;
		fa_list_remove(&job->link);
		fa_list_append(&engine->done, &job->link);
		stream->chain_status = job->status;
		if (job->status)
			stream->chain_error = job->error;
	}
}

void fa_stream_update(struct fa_stream *stream)
{
	struct fa_engine *engine = stream->engine;

	do {
		stream_finish_jobs(stream);
		stream_watch(stream);
	} while (!prepare_queue(stream));
	stream_enqueue(stream);

	if (stream->closing && fa_list_empty(&stream->started) && fa_list_empty(&stream->waiting)) {
		if (stream->queue)
			queue_free(stream);
		stream->closing = false;
		fa_list_append(&engine->closed, &stream->link);
	}
}

void fa_stream_receive(struct fa_stream *stream, struct fa_job *job)
{
	fa_list_append(&stream->waiting, &job->link);
	if (job->status)
		job->state = FA_JOB_SETTLED;
	else if (job->deadline_ns != FA_NS_NEVER)
		fa_deadline_heap_insert(&stream->engine->deadlines, &job->deadline,
		                        job->deadline_ns);
	fa_stream_update(stream);
}

/* The device is lost. Waiting jobs leave after those on the device. */
static void end_waiting(struct fa_stream *stream)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &stream->waiting)
		job_end(fa_container_of(pos, struct fa_job, link), -ENODEV);
	fa_list_splice(&stream->started, &stream->waiting);
	fa_stream_update(stream);
}

static void stream_start(struct fa_stream *stream, struct fa_job *job)
{
	fa_list_remove(&job->link);
	fa_list_append(&stream->started, &job->link);
	stream_watch(stream);
}

/* -EAGAIN or -EBUSY: the device refuses (device.h); the job goes on waiting. */
static int job_launch(struct fa_stream *stream, struct fa_job *job)
{
	const bool device_gated = job == stream->gated;
	struct fa_engine *engine = stream->engine;
	uint64_t begin_ns;
	int r;

	job->work.params = &job->params;
	job->work.completion_words = NULL;
	if (job->device_completes)
		job->work.completion_words = atomic_load_explicit(&stream->device_words,
		                                                  memory_order_relaxed);
	job->work.completion_value = (uint32_t)job->value;
	job->work.gate = (struct fa_device_gate){};
	if (device_gated)
		(void)fa_gates_last_wait(job->gates, &job->work.gate);
	begin_ns = fa_trace_on() ? fa_now_ns() : 0;
	r = engine->ops->launch(engine->device, stream->queue, &job->work);
	if (r < 0)
		return r;
	if (begin_ns)
		fa_trace_slice("launch", begin_ns, 0, job->id);

	job->state = FA_JOB_RUNNING;
	job->device_gated = device_gated;
	stream->n_device_gated += device_gated;
	if (!device_gated && job->gates && stream->gate_backoff)
		stream->gate_backoff--;
	stream->outstanding++;
	engine->n_running++;
	fa_engine_count(&engine->stats.launched, 1);
	/* A decode is urgent, however slow prefills were lately. */
	if (engine->polled && stream->priority > 0)
		engine->urgent = true;
	stream_start(stream, job);
	return 0;
}

/* Launches the first waiting job that is not settled. Returns 0, or the device's refusal. */
static int stream_launch(struct fa_stream *stream)
{
	struct fa_job *job;
	int r = 0;

	/* The device's can_wait() may change with each job. */
	while (can_launch(stream)) {
		job = fa_job_first(&stream->waiting);
		if (needs_slot(job)) {
			/* Does not launch while the stream is queued in another lane. */
			if (!stream->run_lane || stream->run_lane == stream->lane)
				r = job_launch(stream, job);
			break;
		}
		stream_start(stream, job);
		if (job->state == FA_JOB_WAITING) {
			job->state = FA_JOB_RUNNING;
			break;
		}
	}
	if (r == -EAGAIN)
		lane_fill(stream);
	else if (r == -EBUSY)
		defer(stream, job);
	else
		fa_stream_update(stream);
	return r;
}

void fa_stream_end(struct fa_stream *stream, int status)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &stream->started)
		job_end(fa_container_of(pos, struct fa_job, link), status);
	fa_list_for_each(pos, &stream->waiting)
		job_end(fa_container_of(pos, struct fa_job, link), status);
	stream->closing = true;
	fa_stream_update(stream);
}

int fa_engine_launch_next(struct fa_engine *engine)
{
	struct fa_device_lane *lane = fa_container_of(engine->ready_lanes.next,
	                                              struct fa_device_lane, link);
	struct fa_stream *stream = fa_container_of(fa_fair_queue_next(&lane->queue),
	                                           struct fa_stream, run_link);
	struct fa_fair_queue_group *share = &stream->group->shares[share_of(stream, lane)].queue;

	if (engine->ready_lanes.next != engine->ready_lanes.prev) {
		fa_list_remove(&lane->link);
		fa_list_append(&engine->ready_lanes, &lane->link);
	}
	if (engine->lost)
		end_waiting(stream);
	else if (stream_launch(stream) < 0)
		return 0;
	fa_fair_queue_charge(&lane->queue, share, 1);
	return 1;
}

void fa_engine_retry_deferred(struct fa_engine *engine)
{
	struct fa_list deferred, *pos;

	if (fa_list_empty(&engine->deferred))
		return;
	fa_list_init(&deferred);
	fa_list_splice(&deferred, &engine->deferred);
	/* Puts all back first, as a lane's first stream must not find another one deferred. */
	fa_list_for_each(pos, &deferred) {
		struct fa_stream *stream = fa_container_of(pos, struct fa_stream, deferred_link);

		stream->deferred_job = NULL;
		stream->lane->n_deferred--;
	}
	while (!fa_list_empty(&deferred)) {
		struct fa_stream *stream = fa_container_of(deferred.next, struct fa_stream,
		                                           deferred_link);
		struct fa_fair_queue_group *share =
			&stream->group->shares[share_of(stream, stream->lane)].queue;

		fa_list_remove(&stream->deferred_link);
		if (engine->lost || stream->lane->wanted)
			fa_stream_update(stream);
		else if (stream_launch(stream) == 0)
			fa_fair_queue_charge(&stream->lane->queue, share, 1);
	}
}

void fa_engine_free_lanes(struct fa_engine *engine)
{
	while (!fa_list_empty(&engine->full_lanes))
		lane_free_slot(engine, fa_container_of(engine->full_lanes.next,
		                                       struct fa_device_lane, link));
}
