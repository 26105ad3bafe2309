#include "daemon/requests/hello.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"
#include "common/text.h"
#include "daemon/kv/sessions.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* The page is sealed once mapped, so that no client can map it writable. */
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

int fa_handle_hello(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_hello *hello = &call->message->hello;
	struct fa_session *session = call->session;
	struct fa_context *context = session->context;
	const struct fa_limits *limits = &context->config.limits;
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
	/* The next daemon resumes the sessions of a lost device. */
	if (context->state != FA_DAEMON_RUNNING || fa_context_device_lost(context))
		return fa_fail(error, -ESHUTDOWN, "the daemon is stopping");

	if (getrandom(&session->secret, sizeof(session->secret), 0) != sizeof(session->secret))
		return fa_fail(error, -EIO, "the system gives no random numbers: %m");
	r = completions_new(&session->completions, &fd);
	if (r < 0) {
		fa_fail(error, r, "the completion page cannot be made: %s", strerror(-r));
		return fa_context_explain_no_fds(context, r, error);
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
	context->hooks->session_ready(session);
	fa_log_about(&session->subject, FA_LOG_DEBUG, "\"%s\" said Hello%s", session->name,
	             resumed ? " and resumed its session" : "");

	reply = (struct fa_wire_message){
		.id = call->message->id,
		.fds = 1,
		.type = FA_WIRE_HELLO_REPLY,
		.hello_reply = {
			.version = hello->version_max < FA_WIRE_VERSION_MAX ? hello->version_max
			                                                    : FA_WIRE_VERSION_MAX,
			.features = FA_WIRE_FEATURE_RING | FA_WIRE_FEATURE_STEP_RING |
			            FA_WIRE_FEATURE_SEQUENCE_PAGES |
			            FA_WIRE_FEATURE_PAGES_ATTEND | FA_WIRE_FEATURE_STATES |
			            FA_WIRE_FEATURE_MASKS | FA_WIRE_FEATURE_BLOCKS |
			            FA_WIRE_FEATURE_E4M3,
			.daemon_version = wire_string(FAD_VERSION),
			.generation = context->generation,
			.backend = wire_string(context->info.backend),
			.device_name = wire_string(context->info.name),
			.device_uuid = { context->info.uuid[0], context->info.uuid[1] },
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
			.pid = (uint32_t)getpid(),
		},
	};
	fa_session_send(session, &reply, fd, &session->charge_hello);
	return 0;
}

int fa_handle_ping(struct fa_call *call, struct fa_error *error)
{
	fa_session_reply(call->session, call->message->id, 0, NULL);
	return 0;
}
