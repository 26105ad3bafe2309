#include "daemon/attention.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/server.h"
#include "daemon/view.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* A request with all that it keeps alive. */
struct work {
	struct fa_request request; /* first: what the engine gives back */
	struct fa_buffer *buffers[_FA_VIEW_N];
	struct fa_charge charge;
	uint32_t stream; /* id; the stream itself may be closing */
	bool refused;    /* holds nothing, but waits for its turn */
	/* cu_seqlens_q, cu_seqlens_k, alibi_slopes, sinks: 4 bytes each, all of them */
	uint32_t *tail;
};

_Static_assert((int)FA_VIEW_Q == (int)FA_DEVICE_Q && (int)FA_VIEW_LSE == (int)FA_DEVICE_LSE &&
                       (int)_FA_VIEW_N == (int)_FA_DEVICE_TENSOR_N,
               "one order");
_Static_assert(sizeof(float) == sizeof(uint32_t), "the tail holds both");

/* Gives up what only a request that is to run needs. */
static void work_release(struct work *work)
{
	for (unsigned int i = 0; i < _FA_VIEW_N; ++i)
		fa_buffer_unref(fa_steal_ptr(work->buffers[i]));
	fa_charge_release(&work->charge);
	free(fa_steal_ptr(work->tail));
	work->request.params = (struct fa_attention_params){};
}

static struct work *work_free(struct work *work)
{
	if (!work)
		return NULL;
	work_release(work);
	free(work);
	return NULL;
}

static const void *copy(uint32_t **tail, const void *from, size_t n)
{
	uint32_t *to = *tail;

	if (!from)
		return NULL;
	memcpy(to, from, n * sizeof(uint32_t));
	*tail += n;
	return to;
}

/* The parameters point into the message; it will be gone. */
static int keep_tail(struct work *work, const struct fa_wire_attention *attention,
                     struct fa_error *error)
{
	struct fa_attention_params *params = &work->request.params;
	size_t n = attention->n_cu_seqlens_q + attention->n_cu_seqlens_k +
	           attention->n_alibi_slopes + attention->n_sinks;
	uint32_t *tail;

	if (!n)
		return 0;
	tail = work->tail = malloc(n * sizeof(*tail));
	if (!tail)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a request's vectors");
	params->cu_seqlens_q = copy(&tail, params->cu_seqlens_q, attention->n_cu_seqlens_q);
	params->cu_seqlens_k = copy(&tail, params->cu_seqlens_k, attention->n_cu_seqlens_k);
	params->alibi_slopes = copy(&tail, params->alibi_slopes, attention->n_alibi_slopes);
	params->sinks = copy(&tail, params->sinks, attention->n_sinks);
	return 0;
}

static int find_buffers(struct fa_session *session, const struct fa_wire_attention *attention,
                        struct work *work, const struct fa_device_memory **memories,
                        struct fa_error *error)
{
	for (unsigned int i = 0; i < _FA_VIEW_N; ++i) {
		const struct fa_wire_view *view = fa_view_of(attention, i);
		struct fa_buffer *buffer;

		if (i == FA_VIEW_LSE && !view->rank)
			continue;
		buffer = fa_table_find(&session->buffers, view->buffer);
		if (!buffer)
			return fa_fail(error, -ENOENT,
			               "%s.buffer is %" PRIu32
			               ", which is not registered in this session",
			               fa_view_name(i), view->buffer);
		work->buffers[i] = fa_buffer_ref(buffer);
		memories[i] = &buffer->memory;
		work->request.work.memories[i] = &buffer->memory;
	}
	return 0;
}

static int refuse_stopping(const struct fa_server *server, struct fa_error *error)
{
	if (server->is_lost)
		return fa_fail(error, -ENODEV, "the device is lost: %s", server->lost_reason.text);
	return fa_fail(error, -ESHUTDOWN, "the daemon is stopping and takes no new work");
}

static int check(struct fa_session *session, const struct fa_wire_attention *attention,
                 size_t n_fds, struct work *work, struct fa_error *error)
{
	const struct fa_device_memory *memories[_FA_VIEW_N] = { NULL };
	struct fa_server *server = session->server;
	uint64_t max = server->config.limits.session_requests;
	int r;

	if (server->state != FA_SERVER_RUNNING)
		return refuse_stopping(server, error);
	if (n_fds)
		return fa_fail(error, -EINVAL, "Attention came with %zu descriptors; expected none",
		               n_fds);
	if (session->n_requests >= max)
		return fa_fail(error, -EDQUOT,
		               "1 more would exceed the limit session_requests, which is %" PRIu64
		               " in flight for a session",
		               max);
	r = fa_charge_add(&work->charge, session->tenant, FA_RESOURCE_REQUESTS, 1, error);
	if (r == 0)
		r = find_buffers(session, attention, work, memories, error);
	if (r == 0)
		r = fa_attention_bind(attention, memories, &work->request.params, error);
	if (r == 0)
		r = server->ops->check(server->device, &work->request.params, error);
	return r;
}

static void send_completion(struct fa_session *session, uint64_t id, uint32_t stream,
                            const struct fa_request *request)
{
	struct fa_wire_message message = {
		.id = id,
		.type = FA_WIRE_COMPLETION,
		.completion = {
			.stream = stream,
			.value = request->value,
			.status = request->status,
			.queued_ns = request->queued_ns,
			.started_ns = request->started_ns,
			.finished_ns = request->finished_ns,
		},
	};

	if (request->status < 0) {
		++session->n_errors;
		message.completion.text.text = request->error.text;
		message.completion.text.length = strlen(request->error.text);
		fa_log_about(&session->subject, FA_LOG_DEBUG,
		             "request %" PRIu64 " of stream %" PRIu32 ": %s: %s", request->value,
		             stream, strerror(-request->status), request->error.text);
	}
	fa_session_send(session, &message, -1, NULL);
}

int fa_attention_submit(struct fa_session *session, const struct fa_wire_message *message,
                        size_t n_fds, uint64_t received_ns, struct fa_error *error)
{
	const struct fa_wire_attention *attention = &message->attention;
	struct fa_server *server = session->server;
	struct fa_session_stream *slot;
	struct fa_request *request;
	struct work *work;
	int r;

	if (attention->stream >= FA_COMPLETION_SLOTS ||
	    !session->streams[attention->stream].stream) {
		struct fa_request none = { .value = attention->value, .queued_ns = received_ns };

		/* No stream, no order: the answer can go at once. */
		if (server->state == FA_SERVER_RUNNING)
			none.status = fa_fail(&none.error, -ENOENT, "there is no stream %" PRIu32,
			                      attention->stream);
		else
			none.status = refuse_stopping(server, &none.error);
		send_completion(session, message->id, attention->stream, &none);
		return 0;
	}
	slot = &session->streams[attention->stream];
	if (attention->value != slot->next_value)
		return fa_fail(error, -EPROTO,
		               "value is %" PRIu64 "; expected %" PRIu64
		               ", the next one of stream %" PRIu32,
		               attention->value, slot->next_value, attention->stream);

	work = fa_new(struct work);
	if (!work) {
		/* Without a request its value cannot be finished, nor any after it. */
		fa_session_refuse(session, message->id, -ENOMEM,
		                  "the daemon has no memory for a request");
		return 0;
	}

	request = &work->request;
	work->stream = attention->stream;
	request->stream = slot->stream;
	request->id = message->id;
	request->value = attention->value;
	request->owner = session;
	request->queued_ns = received_ns;
	request->deadline_ns = FA_NS_NEVER;
	if (message->timeout_ns &&
	    __builtin_add_overflow(received_ns, message->timeout_ns, &request->deadline_ns))
		request->deadline_ns = FA_NS_NEVER;
	r = check(session, attention, n_fds, work, &request->error);
	if (r == 0)
		r = keep_tail(work, attention, &request->error);
	if (r < 0) {
		request->status = r;
		work->refused = true;
		++session->n_refused;
		work_release(work);
	}

	++slot->next_value;
	++slot->n_requests;
	++session->n_requests;
	++server->n_requests;
	fa_engine_submit(server->engine, request);
	if (session->n_refused >= FA_SESSION_REFUSED_MAX)
		fa_session_pause(session, FA_PAUSE_REQUESTS);
	return 0;
}

void fa_attention_finish(struct fa_session *session, struct fa_request *request)
{
	struct fa_server *server = session->server;
	struct work *work = fa_container_of(request, struct work, request);
	struct fa_session_stream *slot = &session->streams[work->stream];

	--slot->n_requests;
	slot->finished = request->value;
	--session->n_requests;
	--server->n_requests;
	if (work->refused)
		--session->n_refused;
	send_completion(session, request->id, work->stream, request);
	work_free(work);
	if (session->n_refused < FA_SESSION_REFUSED_MAX)
		fa_session_resume(session, FA_PAUSE_REQUESTS);
}

void fa_attention_cancel_all(struct fa_session *session, int status)
{
	for (unsigned int i = 0; i < FA_COMPLETION_SLOTS; ++i) {
		struct fa_session_stream *slot = &session->streams[i];

		if (!slot->stream)
			continue;
		for (uint64_t value = slot->finished + 1; value < slot->next_value; ++value)
			fa_engine_cancel(session->server->engine, slot->stream, value, status);
	}
}
