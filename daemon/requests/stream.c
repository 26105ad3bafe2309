#include "daemon/requests/stream.h"

#include "common/cleanup.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

int fa_handle_stream_create(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_stream_create *message = &call->message->stream_create;
	struct fa_session *session = call->session;
	uint64_t max = session->context->config.limits.session_streams;
	int r;

	if (session->context->state != FA_DAEMON_RUNNING)
		return fa_fail(error, -ESHUTDOWN, "the daemon is stopping");
	if (message->stream < 1 || message->stream >= FA_COMPLETION_SLOTS)
		return fa_fail(error, -EINVAL, "stream is %" PRIu32 "; expected 1 to %d",
		               message->stream, FA_COMPLETION_SLOTS - 1);
	if (session->streams[message->stream].stream)
		return fa_fail(error, -EEXIST, "stream %" PRIu32 " exists already",
		               message->stream);
	if (session->n_streams >= max)
		return fa_fail(error, -EDQUOT,
		               "1 more would exceed the limit session_streams, which is %" PRIu64
		               " for a session",
		               max);
	r = fa_session_stream_new(session, message->stream, message->priority);
	if (r < 0)
		return fa_fail(error, r, "stream %" PRIu32 " cannot be made: %s", message->stream,
		               strerror(-r));
	fa_session_reply(session, call->message->id, 0, NULL);
	return 0;
}

int fa_handle_stream_free(struct fa_call *call, struct fa_error *error)
{
	uint32_t id = call->message->stream_free.stream;
	struct fa_session *session = call->session;
	struct fa_session_stream *slot;

	if (!id)
		return fa_fail(error, -EINVAL,
		               "stream is 0, which is always there; expected 1 to %d",
		               FA_COMPLETION_SLOTS - 1);
	if (id >= FA_COMPLETION_SLOTS || !session->streams[id].stream)
		return fa_fail(error, -ENOENT, "there is no stream %" PRIu32, id);
	slot = &session->streams[id];
	call->may_pass = fa_session_stream_ended(slot) + 1 == slot->next_value;
	if (slot->n_requests)
		return fa_fail(error, -EBUSY, "stream %" PRIu32 " has %u requests in flight", id,
		               slot->n_requests);
	--session->n_streams;
	fa_engine_stream_close(session->context->engine, fa_steal_ptr(slot->stream), -ECANCELED);
	fa_session_reply(session, call->message->id, 0, NULL);
	return 0;
}

int fa_handle_cancel(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_cancel *message = &call->message->cancel;
	struct fa_session *session = call->session;
	struct fa_session_stream *slot;
	uint64_t ended;

	if (message->stream >= FA_COMPLETION_SLOTS || !session->streams[message->stream].stream)
		return fa_fail(error, -ENOENT, "there is no stream %" PRIu32, message->stream);
	slot = &session->streams[message->stream];
	ended = fa_session_stream_ended(slot);
	if (message->value <= ended || message->value >= slot->next_value)
		return fa_fail(error, -ENOENT,
		               "request %" PRIu64 " of stream %" PRIu32
		               " is not in flight; finished are those up to %" PRIu64
		               ", the next one is %" PRIu64,
		               message->value, message->stream, ended, slot->next_value);
	fa_engine_cancel(session->context->engine, slot->stream, message->value, 0);
	fa_session_reply(session, call->message->id, 0, NULL);
	return 0;
}

int fa_handle_marker(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_marker *message = &call->message->marker;
	const struct fa_request_place place = { .stream = message->stream,
		                                .value = message->value,
		                                .by_ring = call->by_ring };

	return fa_request_mark(call->session, call->message, call->n_fds, call->received_ns, place,
	                       error);
}
