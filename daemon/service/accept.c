#include "daemon/service/accept.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/service/server.h"
#include "daemon/session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/socket.h>

/* Connections accepted before other events are handled. */
#define ACCEPT_MAX 16
#define ACCEPT_PAUSE_MS 100

static void on_accept(uv_poll_t *poll, int status, int events)
{
	fa_accept_poll(poll->data);
}

static void on_pause_over(uv_timer_t *timer)
{
	struct fa_server *server = timer->data;

	if (server->context.state == FA_DAEMON_RUNNING)
		server->accept.active = uv_poll_start(&server->accept.poll, UV_READABLE,
		                                      on_accept) == 0;
}

static void pause_polling(struct fa_server *server)
{
	uv_poll_stop(&server->accept.poll);
	server->accept.active = false;
	uv_timer_start(&server->accept.timer, on_pause_over, ACCEPT_PAUSE_MS, 0);
}

void fa_accept_refill_reserve(struct fa_server *server)
{
	if (server->accept.reserve_fd < 0 && server->context.state == FA_DAEMON_RUNNING)
		server->accept.reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void reject(struct fa_server *server, int fd, int status, const char *text)
{
	++server->accept.n_rejected;
	fa_session_reject(&server->context, fd, status, text);
}

static void shed_connection(struct fa_server *server)
{
	int fd;

	fa_context_warn_no_fds(&server->context);
	fa_close_fdp(&server->accept.reserve_fd);
	fd = accept4(server->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		reject(server, fd, -EDQUOT, FA_CONTEXT_NO_FDS);
	fa_accept_refill_reserve(server);
	if (fd < 0 || server->accept.reserve_fd < 0)
		pause_polling(server);
}

/* Consumes @fd on success. */
static int admit(struct fa_server *server, int fd, struct fa_error *error)
{
	const uint64_t max = server->context.config.limits.connections;
	struct fa_session *session;
	int r;

	if (server->context.n_sessions >= max)
		return fa_fail(error, -EDQUOT,
		               "1 more would exceed the limit connections, which is %" PRIu64
		               " for the daemon",
		               max);
	r = fa_session_new(&server->context, fd, error, &session);
	if (r < 0)
		return r;
	if (!uv_is_active((uv_handle_t *)&server->accept.hello_timer))
		fa_accept_update_hello_timer(server);
	return 0;
}

bool fa_accept_again(struct fa_server *server, int fd, bool last)
{
	struct fa_error error;
	int r;

	if (server->context.state != FA_DAEMON_RUNNING)
		r = fa_fail(&error, -ESHUTDOWN, "the daemon is stopping");
	else
		r = admit(server, fd, &error);
	if (r == -EDQUOT && !last)
		return false;
	if (r < 0)
		reject(server, fd, r, error.text);
	return true;
}

static void accepted(struct fa_server *server, int fd)
{
	struct fa_error error;
	int r;

	++server->accept.n_connections;
	r = admit(server, fd, &error);
	if (r == -EDQUOT && fa_hold_connection(server, fd))
		return;
	if (r < 0)
		reject(server, fd, r, error.text);
}

/* True: one more rejected connection could not be closed soon. */
static bool is_reaper_full(struct fa_server *server)
{
	bool full = fa_fd_reaper_is_full(server->context.reaper);

	if (full && !server->accept.reaper_full)
		fa_log(FA_LOG_WARNING,
		       "%d rejected connections are not closed yet: no others are accepted until "
		       "they are",
		       FA_FD_REAPER_UNCHARGED_MAX);
	server->accept.reaper_full = full;
	return full;
}

void fa_accept_poll(struct fa_server *server)
{
	const uint64_t end = fa_now_ns() + FA_TURN_NS;

	for (unsigned int i = 0; i < ACCEPT_MAX && server->accept.active; ++i) {
		int fd;

		/* Accepting takes long, because the peer's cgroup is read. */
		if (i && fa_now_ns() >= end)
			return;

		if (is_reaper_full(server)) {
			pause_polling(server);
			return;
		}
		fd = accept4(server->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			accepted(server, fd);
			continue;
		}
		switch (errno) {
		case EAGAIN:
			return;
		case EINTR:
		case ECONNABORTED:
			break;
		case EMFILE:
		case ENFILE:
			shed_connection(server);
			break;
		default:
			fa_log(FA_LOG_WARNING, "a connection cannot be accepted: %m");
			pause_polling(server);
			return;
		}
	}
}

/* The reaper closes them, as descriptors make that slow. The backlog of an inherited socket is for
 * other listeners. */
static void close_backlog(struct fa_server *server)
{
	int fd;

	if (!server->listener.owns_path)
		return;
	/* This stops the backlog from growing. */

	(void)shutdown(server->listener.fd, SHUT_RD);
	while ((fd = accept4(server->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		fa_fd_reaper_add_connection(server->context.reaper, NULL, fd, NULL);
}

void fa_accept_stop(struct fa_server *server)
{
	close_backlog(server);
	fa_hold_finish(server);
	server->accept.active = false;
	uv_timer_stop(&server->accept.timer);
	uv_close((uv_handle_t *)&server->accept.poll, NULL);
	fa_listener_close(&server->listener);
}

static void on_hello_timeout(uv_timer_t *timer)
{
	struct fa_server *server = timer->data;
	uint64_t now = fa_now_ns();

	while (!fa_list_empty(&server->context.hello_pending)) {
		struct fa_session *session = fa_container_of(server->context.hello_pending.next,
		                                             struct fa_session, hello_link);

		if (session->hello_deadline_ns > now)
			break;
		fa_session_refuse(session, 0, -ETIMEDOUT, "no Hello came in time");
	}
	fa_accept_update_hello_timer(server);
}

void fa_accept_update_hello_timer(struct fa_server *server)
{
	struct fa_session *oldest;
	uint64_t now = fa_now_ns();

	/* A loop without timers sleeps more cheaply. */
	if (fa_list_empty(&server->context.hello_pending) ||
	    server->context.state != FA_DAEMON_RUNNING) {
		uv_timer_stop(&server->accept.hello_timer);
		return;
	}
	oldest = fa_container_of(server->context.hello_pending.next, struct fa_session, hello_link);
	uv_timer_start(&server->accept.hello_timer, on_hello_timeout,
	               oldest->hello_deadline_ns > now
	                       ? (oldest->hello_deadline_ns - now) / FA_NS_PER_MS + 1
	                       : 1,
	               0);
}

void fa_accept_init(struct fa_server *server)
{
	(void)uv_timer_init(server->context.loop, &server->accept.timer);
	(void)uv_timer_init(server->context.loop, &server->accept.hello_timer);
	server->accept.timer.data = server->accept.hello_timer.data = server;
}

int fa_accept_start(struct fa_server *server, struct fa_error *error)
{
	int r;

	r = uv_poll_init(server->context.loop, &server->accept.poll, server->listener.fd);
	if (r < 0)
		return fa_fail(error, r, "the socket cannot be watched: %s", uv_strerror(r));
	server->accept.poll.data = server;
	r = uv_poll_start(&server->accept.poll, UV_READABLE, on_accept);
	if (r < 0) {
		uv_close((uv_handle_t *)&server->accept.poll, NULL);
		return fa_fail(error, r, "the socket cannot be watched: %s", uv_strerror(r));
	}
	server->accept.active = true;
	return 0;
}
