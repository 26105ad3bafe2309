#include "daemon/service/dispatch.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"
#include "common/text.h"
#include "daemon/requests/attention.h"
#include "daemon/requests/buffer.h"
#include "daemon/requests/kv.h"
#include "daemon/service/drain.h"
#include "daemon/service/server.h"
#include "daemon/service/status.h"
#include "daemon/session/submission_ring.h"
#include "daemon/session/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

struct method {
	const char *name;
	bool before_hello;
	unsigned int fds_max;
	bool pipelined; /* clients send several without waiting for the answers */
	fa_call_handler *handle;
	bool by_ring; /* it may come through a ring */
};

int fa_call_submit(const struct fa_call *call, const struct fa_request_kind *kind, uint32_t stream,
                   uint64_t value, struct fa_error *error)
{
	const struct fa_request_place place = {
		.stream = stream, .value = value, .by_ring = call->by_ring, .chained = call->chained
	};

	return fa_request_submit(call->session, call->message, call->n_fds, call->received_ns, kind,
	                         place, error);
}

/* ---- Hello */

/* The page is mapped for us, and then nobody can map it writable any more. */
static int completions_new(struct fa_completion_slot **ret_completions, int *ret_fd)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	void *page;
	int r;

	r = fa_memfd_new("fad-completions", FA_COMPLETION_PAGE_BYTES, 0, &fd);
	if (r < 0)
		return r;
	page = mmap(NULL, FA_COMPLETION_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return -errno;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
		r = -errno;
		munmap(page, FA_COMPLETION_PAGE_BYTES);
		return r;
	}
	*ret_completions = page;
	*ret_fd = fa_steal_fd(&fd);
	return 0;
}

static struct fa_wire_string wire_string(const char *text)
{
	return (struct fa_wire_string){ .text = text, .length = strlen(text) };
}

static int handle_hello(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_hello *hello = &call->message->hello;
	struct fa_session *session = call->session;
	struct fa_server *server = session->server;
	const struct fa_limits *limits = &server->config.limits;
	struct fa_wire_message reply;
	int r, fd = -1;
	bool resumed;

	if (session->state != FA_SESSION_CONNECTED)
		return fa_fail(error, -EPROTO, "a second Hello; expected one for each connection");
	if (hello->version_min > hello->version_max || hello->version_min > FA_WIRE_VERSION_MAX ||
	    hello->version_max < FA_WIRE_VERSION_MIN)
		return fa_fail(error, -EPROTONOSUPPORT,
		               "the client speaks protocol versions %u to %u, this daemon %d to %d",
		               hello->version_min, hello->version_max, FA_WIRE_VERSION_MIN,
		               FA_WIRE_VERSION_MAX);
	/* A client that was refused as the device is lost comes again; its session is the next
	 * daemon's to give back. */
	if (server->state != FA_SERVER_RUNNING || fa_kv_device_lost(server))
		return fa_fail(error, -ESHUTDOWN, "the daemon is stopping");

	if (getrandom(&session->secret, sizeof(session->secret), 0) != sizeof(session->secret))
		return fa_fail(error, -EIO, "the system gives no random numbers: %m");
	r = completions_new(&session->completions, &fd);
	if (r < 0) {
		fa_fail(error, r, "the completion page cannot be made: %s", strerror(-r));
		return fa_server_explain_shortage(server, r, error);
	}
	r = fa_session_stream_new(session, 0, 0);
	if (r < 0) {
		close(fd);
		munmap(fa_steal_ptr(session->completions), FA_COMPLETION_PAGE_BYTES);
		return fa_fail(error, r, "stream 0 cannot be made: %s", strerror(-r));
	}
	if (hello->name.text)
		fa_text_clean(hello->name.text, hello->name.length, session->name,
		              sizeof(session->name));
	session->state = FA_SESSION_READY;
	resumed = fa_kv_session_hello(session, hello->has_resume ? &hello->resume_secret : NULL);
	fa_server_session_ready(server, session);
	fa_log_about(&session->subject, FA_LOG_DEBUG, "\"%s\" said Hello%s", session->name,
	             resumed ? ", and is back" : "");

	reply = (struct fa_wire_message){
		.id = call->message->id,
		.fds = 1,
		.type = FA_WIRE_HELLO_REPLY,
		.hello_reply = {
			.version = hello->version_max < FA_WIRE_VERSION_MAX ? hello->version_max
			                                                    : FA_WIRE_VERSION_MAX,
			.features = FA_WIRE_FEATURE_RING,
			.daemon_version = wire_string(FAD_VERSION),
			.generation = server->generation,
			.backend = wire_string(server->info.backend),
			.device_name = wire_string(server->info.name),
			.device_uuid = { server->info.uuid[0], server->info.uuid[1] },
			.session = session->id,
			.secret = session->secret,
			.resumed = resumed,
			.limits = {
				.message_bytes = FA_WIRE_BYTES_MAX,
				.buffers = limits->session_buffers,
				.buffer_bytes = limits->tenant[FA_RESOURCE_BUFFER_BYTES],
				.streams = limits->session_streams,
				.requests = limits->session_requests,
			},
		},
	};
	fa_session_send(session, &reply, fd, &session->charge_hello);
	return 0;
}

static int handle_ping(struct fa_call *call, struct fa_error *error)
{
	fa_session_reply(call->session, call->message->id, 0, NULL);
	return 0;
}

/* ---- buffers */

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

/* ---- streams */

static int handle_stream_create(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_stream_create *request = &call->message->stream_create;
	struct fa_session *session = call->session;
	uint64_t max = session->server->config.limits.session_streams;
	int r;

	if (session->server->state != FA_SERVER_RUNNING)
		return fa_fail(error, -ESHUTDOWN, "the daemon is stopping");
	if (request->stream < 1 || request->stream >= FA_COMPLETION_SLOTS)
		return fa_fail(error, -EINVAL, "stream is %" PRIu32 "; expected 1 to %d",
		               request->stream, FA_COMPLETION_SLOTS - 1);
	if (session->streams[request->stream].stream)
		return fa_fail(error, -EEXIST, "stream %" PRIu32 " exists already",
		               request->stream);
	if (session->n_streams >= max)
		return fa_fail(error, -EDQUOT,
		               "1 more would exceed the limit session_streams, which is %" PRIu64
		               " for a session",
		               max);
	r = fa_session_stream_new(session, request->stream, request->priority);
	if (r < 0)
		return fa_fail(error, r, "stream %" PRIu32 " cannot be made: %s", request->stream,
		               strerror(-r));
	fa_session_reply(session, call->message->id, 0, NULL);
	return 0;
}

static int handle_stream_free(struct fa_call *call, struct fa_error *error)
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
	if (slot->n_requests)
		return fa_fail(error, -EBUSY, "stream %" PRIu32 " has %u requests in flight", id,
		               slot->n_requests);
	--session->n_streams;
	fa_engine_stream_close(session->server->engine, fa_steal_ptr(slot->stream), -ECANCELED);
	fa_session_reply(session, call->message->id, 0, NULL);
	return 0;
}

/* ---- work */

static int handle_attention(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_attention *request = &call->message->attention;

	return fa_call_submit(call, &fa_attention_kind, request->stream, request->value, error);
}

static int handle_cancel(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_cancel *request = &call->message->cancel;
	struct fa_session *session = call->session;
	struct fa_session_stream *slot;

	if (request->stream >= FA_COMPLETION_SLOTS || !session->streams[request->stream].stream)
		return fa_fail(error, -ENOENT, "there is no stream %" PRIu32, request->stream);
	slot = &session->streams[request->stream];
	if (request->value <= slot->finished || request->value >= slot->next_value)
		return fa_fail(error, -ENOENT,
		               "request %" PRIu64 " of stream %" PRIu32
		               " is not in flight; finished are those up to %" PRIu64
		               ", the next one is %" PRIu64,
		               request->value, request->stream, slot->finished, slot->next_value);
	fa_engine_cancel(session->server->engine, slot->stream, request->value, 0);
	fa_session_reply(session, call->message->id, 0, NULL);
	return 0;
}

static int handle_sequence_copy(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_copy *request = &call->message->sequence_copy;

	return fa_call_submit(call, &fa_kv_copy_kind, request->stream, request->value, error);
}

static int handle_step_attend(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_step_attend *request = &call->message->step_attend;

	return fa_call_submit(call, &fa_kv_attend_kind, request->stream, request->value, error);
}

static int handle_step_end(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_step_end *request = &call->message->step_end;

	return fa_call_submit(call, &fa_kv_end_kind, request->stream, request->value, error);
}

static int handle_marker(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_marker *request = &call->message->marker;
	const struct fa_request_place place = { .stream = request->stream,
		                                .value = request->value,
		                                .by_ring = call->by_ring };

	return fa_request_mark(call->session, call->message, call->n_fds, call->received_ns, place,
	                       error);
}

static int handle_ring_setup(struct fa_call *call, struct fa_error *error)
{
	return fa_ring_setup(call->session, call->message, error);
}

static int handle_timeline_setup(struct fa_call *call, struct fa_error *error)
{
	return fa_timeline_setup(call->session, call->message, error);
}

/* ---- administration */

static int handle_status(struct fa_call *call, struct fa_error *error)
{
	struct fa_session *session = call->session;
	struct fa_charge charge = {};
	struct fa_wire_message reply;
	size_t bytes;
	int r, fd = -1;

	r = fa_session_charge_fd(session, &charge, error);
	if (r < 0)
		return r;
	r = fa_status_new(session, &fd, &bytes);
	if (r < 0) {
		fa_charge_release(&charge);
		return fa_fail(error, r, "the status cannot be written: %s", strerror(-r));
	}
	reply = (struct fa_wire_message){
		.id = call->message->id,
		.fds = 1,
		.type = FA_WIRE_STATUS_REPLY,
		.status_reply = { .bytes = bytes },
	};
	fa_session_send(session, &reply, fd, &charge);
	return 0;
}

static int handle_drain(struct fa_call *call, struct fa_error *error)
{
	struct fa_session *session = call->session;

	if (!session->privileged)
		return fa_fail(error, -EPERM,
		               "only root and the daemon's own user may stop the daemon");
	fa_log_about(&session->subject, FA_LOG_INFO, "a client asked for the end");
	fa_session_reply(session, call->message->id, 0, NULL);
	fa_drain_start(session->server);
	return 0;
}

/* ---- the table */

static const struct method methods[_FA_WIRE_TYPE_N] = {
	[FA_WIRE_HELLO] = { "Hello", true, 0, false, handle_hello },
	[FA_WIRE_PING] = { "Ping", false, 0, false, handle_ping },
	[FA_WIRE_BUFFER_REGISTER] = { "BufferRegister", false, FA_WIRE_FDS_MAX, false,
	                              handle_buffer_register },
	[FA_WIRE_BUFFER_FREE] = { "BufferFree", false, 0, true, handle_buffer_free },
	[FA_WIRE_STREAM_CREATE] = { "StreamCreate", false, 0, false, handle_stream_create },
	[FA_WIRE_STREAM_FREE] = { "StreamFree", false, 0, false, handle_stream_free },
	/* Its own fds_max is its handler's affair, as its answer is a Completion. */
	[FA_WIRE_ATTENTION] = { "Attention", false, FA_WIRE_FDS_MAX, true, handle_attention,
	                        .by_ring = true },
	[FA_WIRE_CANCEL] = { "Cancel", false, 0, false, handle_cancel },
	[FA_WIRE_STATUS] = { "Status", false, 0, false, handle_status },
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
	[FA_WIRE_STEP_BEGIN] = { "StepBegin", false, 0, true, fa_kv_step_begin },
	[FA_WIRE_STEP_ATTEND] = { "StepAttend", false, FA_WIRE_FDS_MAX, true, handle_step_attend,
	                          .by_ring = true },
	[FA_WIRE_STEP_END] = { "StepEnd", false, FA_WIRE_FDS_MAX, true, handle_step_end,
	                       .by_ring = true },
	[FA_WIRE_RING_SETUP] = { "RingSetup", false, 0, false, handle_ring_setup },
	[FA_WIRE_MARKER] = { "Marker", false, FA_WIRE_FDS_MAX, true, handle_marker,
	                     .by_ring = true },
	[FA_WIRE_TIMELINE_SETUP] = { "TimelineSetup", false, 0, false, handle_timeline_setup },
	[FA_WIRE_STEP_ATTEND_LAYERS] = { "StepAttendLayers", false, FA_WIRE_FDS_MAX, true,
	                                 fa_kv_attend_layers, .by_ring = true },
};

static bool is_fatal(int status)
{
	return status == -EPROTO || status == -EPROTONOSUPPORT;
}

/* All that can be wrong with a message before its handler sees it. */
static int check(struct fa_call *call, int decoded, const struct method **ret_method,
                 struct fa_error *error)
{
	const struct fa_wire_message *message = call->message;
	const bool lost = !call->by_ring && !call->fds;
	bool known = decoded == 0 && (unsigned int)message->type < _FA_WIRE_TYPE_N;
	const struct method *method = known ? &methods[message->type] : NULL;

	/* Of those that were lost there were as many as it says, if that can be. */
	if (lost && message->fds > call->n_fds && message->fds <= FA_WIRE_FDS_MAX)
		call->n_fds = message->fds;
	else if (lost || message->fds != call->n_fds)
		return fa_fail(error, -EPROTO,
		               "the message announces %u descriptors, and %s%zu came with it",
		               message->fds, lost ? "more than " : "", call->n_fds);
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
	/* Those of streams are all that may come through a ring. */
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

/* Returns whether the answer will come later. */
static bool dispatch(struct fa_call *call, const void *bytes, size_t length)
{
	struct fa_session *session = call->session;
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
		r = method->handle(call, &error);
		if (r == 0)
			return method->pipelined;
	}
	if (is_fatal(r))
		fa_session_refuse(session, message.id, r, error.text);
	else
		fa_session_reply(session, message.id, r, error.text);
	return false;
}

bool fa_dispatch(struct fa_session *session, const void *bytes, size_t length, int *fds,
                 size_t n_fds, bool lost)
{
	struct fa_call call = { .session = session, .fds = lost ? NULL : fds, .n_fds = n_fds };

	return dispatch(&call, bytes, length);
}

void fa_dispatch_ring(struct fa_session *session, const void *bytes, size_t length,
                      uint64_t received_ns)
{
	struct fa_call call = { .session = session, .received_ns = received_ns, .by_ring = true };

	(void)dispatch(&call, bytes, length);
}

/* ---- what came back */

void fa_dispatch_finished(struct fa_job *request)
{
	struct fa_session *session = request->owner;
	struct fa_server *server = session->server;

	fa_request_finish(request);
	fa_drain_advance(server);
}
