#include "daemon/session/request.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/base/trace.h"
#include "daemon/engine/gate.h"
#include "daemon/session/context.h"
#include "daemon/session/device_completion.h"
#include "daemon/session/submission_ring.h"
#include "daemon/session/timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static void release(struct fa_request *request)
{
	request->kind->release(request);
	while (request->n_buffers)
		fa_registered_buffer_unref(fa_steal_ptr(request->buffers[--request->n_buffers]));
	fa_charge_release(&request->charge);
	fa_charge_release(&request->charge_gates);
	fa_charge_release(&request->charge_metadata);
	fa_charge_release(&request->charge_host);
	free(fa_steal_ptr(request->dependencies));
}

struct fa_request *fa_request_new(struct fa_session *session, const struct fa_request_kind *kind)
{
	struct fa_request *request = fa_block_cache_get(&session->context->request_cache,
	                                                kind->bytes);

	if (!request)
		return NULL;
	request->kind = kind;
	request->session = session;
	request->job.owner = session;
	request->job.deadline_ns = FA_NS_NEVER;
	fa_list_init(&request->blocked_link);
	fa_list_init(&request->step_link);
	return request;
}

struct fa_request *fa_request_free(struct fa_request *request)
{
	if (!request)
		return NULL;
	release(request);
	fa_list_remove(&request->blocked_link);
	fa_list_remove(&request->step_link);
	free(request->job.gates);
	fa_block_cache_put(&request->session->context->request_cache, request,
	                   request->kind->bytes);
	return NULL;
}

/* ---- submission */

static int refuse_stopping(const struct fa_context *context, struct fa_error *error)
{
	if (context->is_lost)
		return fa_fail(error, -ENODEV, "the device is lost: %s", context->lost_reason.text);
	return fa_fail(error, -ESHUTDOWN, "the daemon is stopping and takes no new work");
}

static bool is_stopping(const struct fa_context *context, const struct fa_request_kind *kind)
{
	if (context->state == FA_DAEMON_DRAINING && kind->while_draining)
		return context->is_lost;
	return context->state != FA_DAEMON_RUNNING;
}

static int check(struct fa_request *request, const struct fa_wire_message *message, size_t n_fds,
                 struct fa_error *error)
{
	struct fa_session *session = request->session;
	struct fa_context *context = session->context;
	uint64_t max = context->config.limits.session_requests;
	int r;

	if (is_stopping(context, request->kind))
		return refuse_stopping(context, error);
	if (n_fds)
		return fa_fail(error, -EINVAL, "%s came with %zu descriptors; expected none",
		               fa_wire_type_name(message->type), n_fds);
	if (session->n_requests >= max)
		return fa_fail(error, -EDQUOT,
		               "1 more would exceed the limit session_requests, which is %" PRIu64
		               " in flight for a session",
		               max);
	r = fa_charge_add(&request->charge, session->tenant, FA_RESOURCE_REQUESTS, 1, error);
	if (r == 0)
		r = request->kind->bind(request, message, error);
	return r;
}

static void send_completion(struct fa_session *session, uint64_t id, uint32_t stream,
                            const struct fa_job *job)
{
	struct fa_wire_message message = {
		.id = id,
		.type = FA_WIRE_COMPLETION,
		.completion = {
			.stream = stream,
			.value = job->value,
			.status = job->status,
			.queued_ns = job->queued_ns,
			.started_ns = job->started_ns,
			.finished_ns = job->finished_ns,
		},
	};

	if (job->status < 0) {
		++session->n_errors;
		message.completion.text.text = job->error.text;
		message.completion.text.length = strlen(job->error.text);
		fa_log_about(&session->subject, FA_LOG_DEBUG,
		             "request %" PRIu64 " of stream %" PRIu32 ": %s: %s", job->value,
		             stream, strerror(-job->status), job->error.text);
	}
	fa_session_send(session, &message, -1, NULL);
}

/* Without a stream there is no order to keep. */
static void answer_without_stream(struct fa_session *session, const struct fa_wire_message *message,
                                  uint64_t received_ns, const struct fa_request_kind *kind,
                                  struct fa_request_place place)
{
	struct fa_job none = { .value = place.value, .queued_ns = received_ns };
	struct fa_request *request = kind->refused ? fa_request_new(session, kind) : NULL;
	struct fa_charge charge = {};
	struct fa_error unused;

	/* kind->refused() must run: it makes the step fail. */
	if (kind->refused && !request) {
		fa_session_refuse(session, message->id, -ENOMEM,
		                  "the daemon has no memory for a request");
		return;
	}
	if (is_stopping(session->context, kind))
		none.status = refuse_stopping(session->context, &none.error);
	else
		none.status = fa_fail(&none.error, -ENOENT, "there is no stream %" PRIu32,
		                      place.stream);
	if (request) {
		request->job.error = none.error;
		kind->refused(request, message);
	}
	fa_request_free(request);

	/* Binds the signals, so that their waiters are released. */
	(void)fa_timeline_bind(session, message, &charge, &unused, &none.gates);
	if (none.gates)
		fa_gates_signal(none.gates, none.status);
	free(none.gates);
	fa_charge_release(&charge);
	send_completion(session, message->id, place.stream, &none);
}

static void submit(struct fa_request *request)
{
	struct fa_session *session = request->session;
	struct fa_session_stream *slot = &session->streams[request->stream];

	++session->n_submitted;
	request->job.stream = slot->stream;
	if (request->dependencies) {
		request->job.held = true;
		fa_list_append(&session->blocked, &request->blocked_link);
	}
	++slot->next_value;
	++slot->n_requests;
	slot->last = request;
	++session->context->n_requests;
	fa_engine_submit(session->context->engine, &request->job);
}

static void count(struct fa_usage *usage, const struct fa_job *job, bool own)
{
	if (job->started_ns)
		usage->busy_ns += job->finished_ns - job->started_ns;
	if (own)
		return;
	++usage->finished;
	if (job->status)
		++*(job->status == -ECANCELED ? &usage->cancelled : &usage->failed);
	if (job->started_ns) {
		fa_usage_times_add(&usage->took, job->finished_ns - job->queued_ns);
		fa_usage_times_add(&usage->waited, job->started_ns - job->queued_ns);
	}
}

/* @own: the request is the daemon's own; only device time counts. */
static void account(struct fa_session *session, const struct fa_job *job, bool own)
{
	count(&session->usage, job, own);
	count(&session->tenant->usage, job, own);
	if (job->started_ns && !own)
		fa_usage_times_add(&session->tenant->usage.ran, job->finished_ns - job->started_ns);
}

static void trace(const struct fa_session *session, uint32_t stream, const struct fa_job *job,
                  const struct fa_request_kind *kind)
{
	const struct fa_trace_request request = {
		.name = kind->name,
		.session = session->id,
		.stream = stream,
		.value = job->value,
		.status = job->status,
		.queued_ns = job->queued_ns,
		.started_ns = job->started_ns,
		.finished_ns = job->finished_ns,
	};

	fa_trace_request(&request);
}

/* True if nothing of the stream is in the engine, which would only finish a request without device
 * work. */
static bool engine_is_done(const struct fa_session *session, const struct fa_session_stream *slot)
{
	struct fa_error unused;

	return !slot->n_requests && session->context->state == FA_DAEMON_RUNNING &&
	       !session->context->is_lost && !fa_engine_lost(session->context->engine, &unused);
}

/* answer_here() follows. */
static void publish_here(struct fa_session *session, uint32_t stream, const struct fa_job *job,
                         const struct fa_request_kind *kind)
{
	struct fa_session_stream *slot = &session->streams[stream];
	const struct fa_outcome outcome = {
		.status = job->status,
		.queued_ns = job->queued_ns,
		.finished_ns = job->finished_ns,
		.number = job->number,
	};

	fa_device_completion_pass(session, stream, job->value);
	++slot->next_value;
	slot->finished = job->value;
	account(session, job, false);
	if (fa_trace_on())
		trace(session, stream, job, kind);
	fa_engine_complete_empty(session->context->engine, slot->stream, job->value, &outcome);
}

static void answer_here(struct fa_session *session, uint32_t stream, const struct fa_job *job,
                        bool by_ring)
{
	if (by_ring)
		fa_ring_wake_later(session);
	if (!by_ring || job->status)
		send_completion(session, job->id, stream, job);
	if (!fa_list_empty(&session->blocked))
		fa_request_unblock(session, NULL);
}

static bool can_finish_here(const struct fa_request *request)
{
	const struct fa_job *job = &request->job;

	return job->work.op == FA_DEVICE_NONE && !request->dependencies && !job->gates &&
	       engine_is_done(request->session, &request->session->streams[request->stream]) &&
	       (job->deadline_ns == FA_NS_NEVER || fa_now_ns() < job->deadline_ns);
}

static void finish_here(struct fa_request *request)
{
	struct fa_session *session = request->session;

	++session->n_submitted;
	if (request->job.confirms)
		request->job.status = request->kind->confirm(request, &request->job.error);
	request->job.finished_ns = fa_now_ns();
	publish_here(session, request->stream, &request->job, request->kind);
	if (request->kind->ended)
		request->kind->ended(request);
	answer_here(session, request->stream, &request->job, request->by_ring);
	fa_request_free(request);
}

int fa_request_submit(struct fa_session *session, const struct fa_wire_message *message,
                      size_t n_fds, uint64_t received_ns, const struct fa_request_kind *kind,
                      struct fa_request_place place, struct fa_error *error)
{
	struct fa_session_stream *slot;
	struct fa_job *job;
	struct fa_request *request;
	int r;

	if (place.stream >= FA_COMPLETION_SLOTS || !session->streams[place.stream].stream) {
		answer_without_stream(session, message, received_ns, kind, place);
		return 0;
	}
	slot = &session->streams[place.stream];
	if (place.value != slot->next_value)
		return fa_fail(error, -EPROTO,
		               "value is %" PRIu64 "; expected %" PRIu64
		               ", the next one of stream %" PRIu32,
		               place.value, slot->next_value, place.stream);

	request = fa_request_new(session, kind);
	if (!request) {
		/* Neither this value nor a later one could ever finish: the connection ends. */
		fa_session_refuse(session, message->id, -ENOMEM,
		                  "the daemon has no memory for a request");
		return 0;
	}

	job = &request->job;
	request->stream = place.stream;
	request->by_ring = place.by_ring;
	job->id = message->id;
	job->value = place.value;
	job->queued_ns = received_ns;
	if (message->timeout_ns &&
	    __builtin_add_overflow(received_ns, message->timeout_ns, &job->deadline_ns))
		job->deadline_ns = FA_NS_NEVER;
	job->chained = place.chained;
	r = fa_timeline_bind(session, message, &request->charge_gates, &job->error, &job->gates);
	if (r == 0)
		r = check(request, message, n_fds, &job->error);
	if (r < 0) {
		job->status = r;
		request->refused = true;
		++session->n_refused;
		if (kind->refused)
			kind->refused(request, message);
		release(request);
	} else if (can_finish_here(request)) {
		finish_here(request);
		return 0;
	}

	job->device_completes = fa_device_completion_submit(
		request, r == 0 && job->work.op != FA_DEVICE_NONE &&
				 job->deadline_ns == FA_NS_NEVER && !job->gates && !job->chained &&
				 !job->confirms && !request->dependencies);
	++session->n_requests;
	submit(request);
	if (session->n_refused >= FA_SESSION_REFUSED_MAX)
		fa_session_pause(session, FA_PAUSE_REFUSED);
	return 0;
}

/* ---- markers */

static int bind_marker(struct fa_request *request, const struct fa_wire_message *message,
                       struct fa_error *error)
{
	request->job.work.op = FA_DEVICE_NONE;
	return 0;
}

static void release_marker(struct fa_request *request)
{
}

static const struct fa_request_kind marker_kind = {
	.name = "Marker",
	.bytes = sizeof(struct fa_request),
	.bind = bind_marker,
	.release = release_marker,
};

static bool can_mark_here(const struct fa_session *session, const struct fa_wire_message *message,
                          size_t n_fds, struct fa_request_place place)
{
	const struct fa_session_stream *slot;

	if (place.stream >= FA_COMPLETION_SLOTS || n_fds || message->n_waits || message->n_signals)
		return false;
	slot = &session->streams[place.stream];
	return slot->stream && place.value == slot->next_value && engine_is_done(session, slot);
}

int fa_request_mark(struct fa_session *session, const struct fa_wire_message *message, size_t n_fds,
                    uint64_t received_ns, struct fa_request_place place, struct fa_error *error)
{
	struct fa_job job;

	if (!can_mark_here(session, message, n_fds, place))
		return fa_request_submit(session, message, n_fds, received_ns, &marker_kind, place,
		                         error);
	job.id = message->id;
	job.value = place.value;
	job.status = 0;
	job.queued_ns = job.finished_ns = received_ns;
	job.started_ns = job.number = 0;
	publish_here(session, place.stream, &job, &marker_kind);
	answer_here(session, place.stream, &job, place.by_ring);
	return 0;
}

void fa_request_submit_own(struct fa_request *request)
{
	request->stream = FA_SESSION_STREAM_OWN;
	request->job.value = request->session->streams[request->stream].next_value;
	request->job.queued_ns = fa_now_ns();
	submit(request);
}

/* ---- completion */

static bool dependencies_met(const struct fa_request *request)
{
	for (unsigned int i = 0; i < FA_SESSION_STREAMS; ++i)
		if (request->session->streams[i].finished < request->dependencies[i])
			return false;
	return true;
}

void fa_request_unblock(struct fa_session *session, const struct fa_kv_step *doomed)
{
	struct fa_engine *engine = session->context->engine;
	struct fa_list *pos, *tmp;
	struct fa_error error;

	fa_list_for_each_safe(pos, tmp, &session->blocked) {
		struct fa_request *request = fa_container_of(pos, struct fa_request, blocked_link);
		int status = 0;

		if (doomed && request->step == doomed)
			status = fa_fail(&error, -ECANCELED,
			                 "the pages of its step could not be prepared");
		else if (!dependencies_met(request))
			continue;
		fa_list_remove(&request->blocked_link);
		fa_engine_release(engine, &request->job, status, &error);
	}
}

static void confirm(struct fa_request *request)
{
	struct fa_error error;
	const int status = request->kind->confirm(request, &error);

	fa_engine_confirm(request->session->context->engine, &request->job, status, &error);
}

void fa_request_reported(struct fa_request *request)
{
	struct fa_session *session = request->session;

	request->reported = true;
	session->streams[request->stream].reported = request->job.value;
	--session->n_requests;
	fa_charge_release(&request->charge);
	/* Freed when the request finishes; the device's depth bounds it. */
	fa_charge_release(&request->charge_metadata);
	fa_charge_release(&request->charge_host);
	fa_tenant_ending(session->tenant);
}

void fa_request_finish(struct fa_job *job)
{
	struct fa_request *request = fa_container_of(job, struct fa_request, job);
	struct fa_session *session = request->session;
	struct fa_tenant *ending = request->reported ? session->tenant : NULL;
	struct fa_session_stream *slot = &session->streams[request->stream];

	if (job->confirming) {
		confirm(request);
		return;
	}
	--slot->n_requests;
	if (slot->last == request)
		slot->last = NULL;
	slot->finished = job->value;
	if (job->device_completes)
		fa_device_completion_finished(request);
	--session->context->n_requests;
	account(session, job, request->stream == FA_SESSION_STREAM_OWN);
	if (fa_trace_on())
		trace(session, request->stream, job, request->kind);
	if (request->kind->ended)
		request->kind->ended(request);
	if (request->stream != FA_SESSION_STREAM_OWN) {
		session->n_requests -= !request->reported;
		if (request->refused)
			--session->n_refused;
		if (!request->by_ring || job->status)
			send_completion(session, job->id, request->stream, job);
	}
	fa_request_free(request);
	fa_request_unblock(session, NULL);
	if (session->n_refused < FA_SESSION_REFUSED_MAX)
		fa_session_resume(session, FA_PAUSE_REFUSED);
	if (ending)
		fa_tenant_ended(ending);
}

void fa_request_cancel_all(struct fa_session *session, int status)
{
	for (unsigned int i = 0; i < FA_COMPLETION_SLOTS; ++i) {
		struct fa_session_stream *slot = &session->streams[i];

		if (!slot->stream)
			continue;
		for (uint64_t value = fa_session_stream_ended(slot) + 1; value < slot->next_value;
		     ++value)
			fa_engine_cancel(session->context->engine, slot->stream, value, status);
	}
}
