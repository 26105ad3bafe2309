#include "daemon/service/status_reply.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/service/server.h"
#include "daemon/service/status.h"
#include "daemon/session/session.h"
#include "daemon/session/turns.h"

#include <errno.h>
#include <string.h>

/* With more sessions a worker writes the text. */
#define SESSIONS_INLINE 8
/* Limits the statuses that workers have at once. */
#define WORKS_MAX 8

struct reply {
	uv_work_t work;
	struct fa_session *session; /* referenced while a worker runs */
	uint64_t message_id;
	struct fa_charge charge; /* for the descriptor */
	struct fa_status *status;
	int result, fd;
	size_t bytes;
	uint64_t cpu_ns; /* by the worker */
};

static struct reply *reply_free(struct reply *reply)
{
	if (!reply)
		return NULL;
	fa_status_free(reply->status);
	fa_close_fdp(&reply->fd);
	fa_charge_release(&reply->charge);
	free(reply);
	return NULL;
}

static void reply_freep(struct reply **reply)
{
	*reply = reply_free(*reply);
}

static void write_text(struct reply *reply)
{
	reply->result = fa_status_write(reply->status, &reply->fd, &reply->bytes);
	fa_status_free(fa_steal_ptr(reply->status));
}

static int fail(struct fa_error *error, int code)
{
	return fa_fail(error, code, "the status cannot be written: %s", strerror(-code));
}

static int send_reply(struct fa_session *session, struct reply *reply, struct fa_error *error)
{
	const struct fa_wire_message message = {
		.id = reply->message_id,
		.fds = 1,
		.type = FA_WIRE_STATUS_REPLY,
		.status_reply = { .bytes = reply->bytes },
	};

	if (reply->result < 0)
		return fail(error, reply->result);
	fa_session_send(session, &message, fa_steal_fd(&reply->fd), &reply->charge);
	return 0;
}

static void on_work(uv_work_t *work)
{
	struct reply *reply = work->data;
	const uint64_t begin_ns = fa_thread_cpu_ns();

	write_text(reply);
	reply->cpu_ns = fa_thread_cpu_ns() - begin_ns;
}

static void on_written(uv_work_t *work, int status)
{
	struct reply *reply = work->data;
	struct fa_session *session = reply->session;
	struct fa_error error;
	int r;

	--fa_server_of(session->context)->n_status_works;
	/* The account pays for a worker's time; otherwise it could ask all the time. */
	fa_turn_use(session, reply->cpu_ns);
	if (session->state != FA_SESSION_CLOSING) {
		r = send_reply(session, reply, &error);
		if (r < 0)
			fa_session_reply(session, reply->message_id, r, error.text);
	}
	reply_free(reply);
	fa_session_resume(session, FA_PAUSE_STATUS);
	fa_session_unref(session);
}

int fa_status_reply(struct fa_call *call, struct fa_error *error)
{
	_fa_cleanup_(reply_freep) struct reply *reply = NULL;
	struct fa_session *session = call->session;
	struct fa_server *server = fa_server_of(session->context);
	int r;

	reply = fa_new(struct reply);
	if (!reply)
		return fail(error, -ENOMEM);
	reply->fd = -1;
	reply->message_id = call->message->id;
	r = fa_session_charge_fd(session, &reply->charge, error);
	if (r < 0)
		return r;
	r = fa_status_new(session, &reply->status);
	if (r < 0)
		return fail(error, r);
	if (reply->status->n_rows <= SESSIONS_INLINE || server->n_status_works >= WORKS_MAX) {
		write_text(reply);
		return send_reply(session, reply, error);
	}
	reply->session = fa_session_ref(session);
	reply->work.data = reply;
	++server->n_status_works;
	fa_session_pause(session, FA_PAUSE_STATUS);
	(void)uv_queue_work(session->context->loop, &reply->work, on_work, on_written);
	(void)fa_steal_ptr(reply);
	return 0;
}
