#include "daemon/session/peer_watch.h"

#include "common/cleanup.h"
#include "daemon/account/peer.h"
#include "daemon/session/context.h"
#include "daemon/session/outbox.h"
#include "daemon/session/session.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* The session reads what is there, then the end. Answers can still be sent. */
static void end_input(int socket)
{
	(void)shutdown(socket, SHUT_RD);
}

static void on_end(uv_poll_t *poll, int status, int events)
{
	struct fa_session *session = poll->data;

	/* The descriptor remains readable. */
	(void)uv_poll_stop(poll);
	if (session->fd >= 0)
		end_input(session->fd);
}

static void on_closed(uv_handle_t *handle)
{
	fa_session_unref(handle->data);
}

int fa_peer_watch_start(struct fa_session *session, int socket, struct fa_error *error)
{
	struct fa_peer_watch *watch = &session->peer_watch;
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	int r;

	r = fa_peer_open(socket, &session->peer, &fd);
	if (r == -ESRCH) {
		end_input(socket);
		return 0;
	}
	if (r == -ENOTSUP)
		return 0;
	if (r < 0)
		return fa_fail(error, r, "the kernel does not tell who connected: %s",
		               strerror(-r));
	r = fa_session_charge_fd(session, &watch->charge, error);
	if (r < 0)
		return r;
	r = uv_poll_init(session->context->loop, &watch->poll, fd);
	if (r < 0) {
		fa_charge_release(&watch->charge);
		return fa_fail(error, r, "the client's process cannot be watched: %s",
		               uv_strerror(r));
	}
	watch->poll.data = fa_session_ref(session);
	watch->pidfd = fa_steal_fd(&fd);
	r = uv_poll_start(&watch->poll, UV_READABLE, on_end);
	if (r < 0) {
		fa_peer_watch_stop(session);
		return fa_fail(error, r, "the client's process cannot be watched: %s",
		               uv_strerror(r));
	}
	return 0;
}

void fa_peer_watch_stop(struct fa_session *session)
{
	struct fa_peer_watch *watch = &session->peer_watch;

	if (watch->pidfd < 0)
		return;
	uv_close((uv_handle_t *)&watch->poll, on_closed);
	fa_close_fdp(&watch->pidfd);
	fa_charge_release(&watch->charge);
}
