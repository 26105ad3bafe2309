#include "daemon/service/dispatch.h"

#include "common/clock.h"
#include "daemon/base/trace.h"
#include "daemon/requests/attention.h"
#include "daemon/requests/buffer.h"
#include "daemon/requests/hello.h"
#include "daemon/requests/kv.h"
#include "daemon/requests/pages_attend.h"
#include "daemon/requests/stream.h"
#include "daemon/service/drain.h"
#include "daemon/service/hold.h"
#include "daemon/service/server.h"
#include "daemon/service/status_reply.h"
#include "daemon/session/submission_ring.h"
#include "daemon/session/timeline.h"

#include <errno.h>
#include <string.h>

struct method {
	const char *name;
	bool before_hello;
	unsigned int fds_max;
	bool pipelined; /* clients send on before the answer */
	fa_call_handler *handle;
	bool by_ring; /* allowed in rings */
	/* A refused message has changed nothing, so it may be held and handled again. */
	bool held;
};

static int handle_buffer_register(struct fa_call *call, struct fa_error *error)
{
	return fa_registration_start(call->session, call->message, call->fds, call->n_fds, error);
}

static int handle_buffer_pieces(struct fa_call *call, struct fa_error *error)
{
	return fa_registration_pieces(call->session, call->message, call->fds, call->n_fds, error);
}

static int handle_buffer_free(struct fa_call *call, struct fa_error *error)
{
	return fa_registration_free(call->session, call->message, error);
}

static int handle_attention(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_attention *message = &call->message->attention;

	return fa_call_submit(call, &fa_attention_kind, message->stream, message->value, error);
}

static int handle_pages_attend(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_pages_attend *message = &call->message->pages_attend;

	return fa_call_submit(call, &fa_pages_attend_kind, message->stream, message->value, error);
}

static int handle_sequence_copy(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_copy *message = &call->message->sequence_copy;

	return fa_call_submit(call, &fa_kv_copy_kind, message->stream, message->value, error);
}

static int handle_sequence_pages(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_pages *message = &call->message->sequence_pages;

	return fa_call_submit(call, &fa_kv_pages_kind, message->stream, message->value, error);
}

static int handle_sequence_state(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_state *message = &call->message->sequence_state;

	return fa_call_submit(call, &fa_kv_state_kind, message->stream, message->value, error);
}

static int handle_step_attend(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_step_attend *message = &call->message->step_attend;

	return fa_call_submit(call, &fa_kv_attend_kind, message->stream, message->value, error);
}

static int handle_step_end(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_step_end *message = &call->message->step_end;

	return fa_call_submit(call, &fa_kv_end_kind, message->stream, message->value, error);
}

static int handle_ring_setup(struct fa_call *call, struct fa_error *error)
{
	return fa_ring_setup(call->session, call->message, error);
}

static int handle_timeline_setup(struct fa_call *call, struct fa_error *error)
{
	return fa_timeline_setup(call->session, call->message, error);
}

static int handle_drain(struct fa_call *call, struct fa_error *error)
{
	struct fa_session *session = call->session;

	if (!session->privileged)
		return fa_fail(error, -EPERM,
		               "only root and the daemon's own user may stop the daemon");
	fa_log_about(&session->subject, FA_LOG_INFO, "a client asked the daemon to stop");
	fa_session_reply(session, call->message->id, 0, NULL);
	fa_drain_start(fa_server_of(session->context));
	return 0;
}

static const struct method methods[_FA_WIRE_TYPE_N] = {
	[FA_WIRE_HELLO] = { "Hello", true, 0, false, fa_handle_hello },
	[FA_WIRE_PING] = { "Ping", false, 0, false, fa_handle_ping },
	[FA_WIRE_BUFFER_REGISTER] = { "BufferRegister", false, FA_WIRE_FDS_MAX, false,
	                              handle_buffer_register, .held = true },
	[FA_WIRE_BUFFER_FREE] = { "BufferFree", false, 0, true, handle_buffer_free },
	[FA_WIRE_STREAM_CREATE] = { "StreamCreate", false, 0, false, fa_handle_stream_create },
	[FA_WIRE_STREAM_FREE] = { "StreamFree", false, 0, false, fa_handle_stream_free,
	                          .held = true },
	/* fa_request_submit() refuses descriptors in a Completion. */

	[FA_WIRE_ATTENTION] = { "Attention", false, FA_WIRE_FDS_MAX, true, handle_attention,
	                        .by_ring = true },
	[FA_WIRE_PAGES_ATTEND] = { "PagesAttend", false, FA_WIRE_FDS_MAX, true, handle_pages_attend,
	                           .by_ring = true },
	[FA_WIRE_CANCEL] = { "Cancel", false, 0, false, fa_handle_cancel },
	[FA_WIRE_STATUS] = { "Status", false, 0, false, fa_status_reply },
	[FA_WIRE_DRAIN] = { "Drain", false, 0, false, handle_drain },
	[FA_WIRE_BUFFER_PIECES] = { "BufferPieces", false, FA_WIRE_FDS_MAX, true,
	                            handle_buffer_pieces },
	[FA_WIRE_CACHE_CREATE] = { "CacheCreate", false, 0, false, fa_kv_cache_create },
	[FA_WIRE_CACHE_FIND] = { "CacheFind", false, 0, false, fa_kv_cache_find },
	[FA_WIRE_CACHE_REMOVE] = { "CacheRemove", false, 0, false, fa_kv_cache_remove },
	[FA_WIRE_SEQUENCE_CREATE] = { "SequenceCreate", false, 0, true, fa_kv_sequence_create },
	[FA_WIRE_SEQUENCE_FIND] = { "SequenceFind", false, 0, false, fa_kv_sequence_find },
	[FA_WIRE_SEQUENCE_FORK] = { "SequenceFork", false, 0, true, fa_kv_sequence_fork },
	[FA_WIRE_SEQUENCE_SET_NAME] = { "SequenceSetName", false, 0, false,
	                                fa_kv_sequence_set_name },
	[FA_WIRE_SEQUENCE_TRUNCATE] = { "SequenceTruncate", false, 0, true,
	                                fa_kv_sequence_truncate },
	[FA_WIRE_SEQUENCE_DROP] = { "SequenceDrop", false, 0, true, fa_kv_sequence_drop },
	[FA_WIRE_SEQUENCE_FREE] = { "SequenceFree", false, 0, true, fa_kv_sequence_free },
	[FA_WIRE_SEQUENCE_INFO] = { "SequenceInfo", false, 0, false, fa_kv_sequence_info },
	[FA_WIRE_SEQUENCE_PUBLISH] = { "SequencePublish", false, 0, false, fa_kv_sequence_publish },
	[FA_WIRE_SEQUENCE_ATTACH] = { "SequenceAttach", false, 0, false, fa_kv_sequence_attach },
	[FA_WIRE_SEQUENCE_COPY] = { "SequenceCopy", false, FA_WIRE_FDS_MAX, true,
	                            handle_sequence_copy, .by_ring = true },
	[FA_WIRE_STEP_BEGIN] = { "StepBegin", false, 0, true, fa_kv_step_begin, .by_ring = true },
	[FA_WIRE_STEP_ATTEND] = { "StepAttend", false, FA_WIRE_FDS_MAX, true, handle_step_attend,
	                          .by_ring = true },
	[FA_WIRE_STEP_END] = { "StepEnd", false, FA_WIRE_FDS_MAX, true, handle_step_end,
	                       .by_ring = true },
	[FA_WIRE_RING_SETUP] = { "RingSetup", false, 0, false, handle_ring_setup },
	[FA_WIRE_MARKER] = { "Marker", false, FA_WIRE_FDS_MAX, true, fa_handle_marker,
	                     .by_ring = true },
	[FA_WIRE_TIMELINE_SETUP] = { "TimelineSetup", false, 0, false, handle_timeline_setup,
	                             .held = true },
	[FA_WIRE_STEP_ATTEND_LAYERS] = { "StepAttendLayers", false, FA_WIRE_FDS_MAX, true,
	                                 fa_kv_attend_layers, .by_ring = true },
	[FA_WIRE_PREFIX_FIND] = { "PrefixFind", false, 0, false, fa_kv_prefix_find },
	[FA_WIRE_SEQUENCE_PAGES] = { "SequencePages", false, FA_WIRE_FDS_MAX, true,
	                             handle_sequence_pages, .by_ring = true },
	[FA_WIRE_SEQUENCE_STATE] = { "SequenceState", false, FA_WIRE_FDS_MAX, true,
	                             handle_sequence_state, .by_ring = true },
};

static bool is_fatal(int status)
{
	return status == -EPROTO || status == -EPROTONOSUPPORT;
}

static int check(struct fa_call *call, int decoded, const struct method **ret_method,
                 struct fa_error *error)
{
	const struct fa_wire_message *message = call->message;
	const bool fds_lost = !call->by_ring && !call->fds;
	bool known = decoded == 0 && (unsigned int)message->type < _FA_WIRE_TYPE_N;
	const struct method *method = known ? &methods[message->type] : NULL;

	/* Only the message knows how many descriptors were lost. */
	if (fds_lost && message->fds > call->n_fds && message->fds <= FA_WIRE_FDS_MAX)
		call->n_fds = message->fds;
	else if (fds_lost || message->fds != call->n_fds)
		return fa_fail(error, -EPROTO,
		               "the message announces %u descriptors, and %s%zu came with it",
		               message->fds, fds_lost ? "more than " : "", call->n_fds);
	if (call->session->state == FA_SESSION_CONNECTED && (!method || !method->before_hello))
		return fa_fail(error, -EPROTO, "the first message is %s; expected Hello",
		               fa_wire_type_name(message->type));
	if (decoded == -ENOSYS)
		return fa_fail(error, -ENOTSUP, "unknown message type %u",
		               (unsigned int)message->type);
	if (decoded < 0)
		return fa_fail(error, -EPROTO, "a string or vector of %s is longer than allowed",
		               fa_wire_type_name(message->type));
	if (!method->handle)
		return fa_fail(error, -ENOTSUP, "%s is no request; message type %u is an answer",
		               fa_wire_type_name(message->type), (unsigned int)message->type);
	if (call->n_fds > method->fds_max)
		return fa_fail(error, -EINVAL, "%s came with %zu descriptors; expected at most %u",
		               method->name, call->n_fds, method->fds_max);
	/* by_ring marks requests of streams; others have no gates. */
	if ((message->n_waits || message->n_signals) && !method->by_ring)
		return fa_fail(error, -EINVAL,
		               "%s came with gates, which only requests of streams have",
		               method->name);
	if (call->by_ring && !method->by_ring)
		return fa_fail(error, -ENOTSUP,
		               "%s cannot come through a ring; send it as a packet", method->name);
	*ret_method = method;
	return 0;
}

static int handle(struct fa_call *call, const struct method *method, struct fa_error *error)
{
	/* The call may free its session. */
	const uint64_t session = call->session->id, id = call->message->id;
	uint64_t begin_ns;
	int r;

	if (!fa_trace_on())
		return method->handle(call, error);
	begin_ns = fa_now_ns();
	r = method->handle(call, error);
	fa_trace_slice(method->name, begin_ns, session, id);
	return r;
}

/* True: the message is pipelined. */
static bool dispatch(struct fa_call *call, const void *bytes, size_t length)
{
	struct fa_session *session = call->session;
	const uint64_t refused = session->context->tenants.n_refused;
	const struct method *method = NULL;
	struct fa_wire_message message;
	struct fa_error error;
	int decoded, r;

	call->message = &message;
	decoded = fa_wire_decode(bytes, length, &message);
	if (decoded < 0 && decoded != -ENOSYS && decoded != -EMSGSIZE) {
		fa_session_refuse(session, 0, -EPROTO,
		                  call->by_ring ? "an entry of the ring is no valid message"
		                                : "the packet is no valid message");
		return false;
	}
	error.text[0] = 0;
	r = check(call, decoded, &method, &error);
	if (r == 0) {
		if (method->pipelined && !call->received_ns)
			call->received_ns = fa_now_ns();
		r = handle(call, method, &error);
		if (r == 0)
			return method->pipelined;
		if (r == -EDQUOT && session->context->tenants.n_refused != refused)
			call->may_pass = true;
		if (method->held && call->may_pass &&
		    fa_hold_packet(session, bytes, length, call->fds, call->n_fds)) {
			call->is_held = true;
			return false;
		}
	}
	if (is_fatal(r))
		fa_session_refuse(session, message.id, r, error.text);
	else
		fa_session_reply(session, message.id, r, error.text);
	return false;
}

bool fa_dispatch(struct fa_session *session, const void *bytes, size_t length, int *fds,
                 size_t n_fds, bool fds_lost)
{
	struct fa_call call = { .session = session, .fds = fds_lost ? NULL : fds, .n_fds = n_fds };

	return dispatch(&call, bytes, length);
}

bool fa_dispatch_held(struct fa_session *session, const void *bytes, size_t length, int *fds,
                      size_t n_fds)
{
	struct fa_call call = { .session = session, .fds = fds, .n_fds = n_fds };

	(void)dispatch(&call, bytes, length);
	return call.is_held;
}

void fa_dispatch_ring(struct fa_session *session, const void *bytes, size_t length,
                      uint64_t received_ns)
{
	struct fa_call call = { .session = session, .received_ns = received_ns, .by_ring = true };

	(void)dispatch(&call, bytes, length);
}
