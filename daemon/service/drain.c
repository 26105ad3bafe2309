#include "daemon/service/drain.h"

#include "daemon/requests/buffer.h"
#include "daemon/session/request.h"
#include "daemon/session/session.h"

#include <errno.h>

/* Time between cancelling requests and reading nothing more. */
#define CANCEL_MS 1000
/* Time limit of a drain after device loss. */
#define LOST_MS 1000
/* Time for clients to read their last answers. */
#define FLUSH_MS 500

static void start_flush(struct fa_server *server);
static void start_stop(struct fa_server *server);

static bool is_importing(const struct fa_server *server)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &server->context.sessions)
		if (fa_container_of(pos, struct fa_session, link)->import)
			return true;
	return false;
}

static bool is_unsent(const struct fa_server *server)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &server->context.sessions)
		if (fa_container_of(pos, struct fa_session, link)->outbox.n_messages)
			return true;
	return false;
}

/* A client that goes on sending would prolong the drain. */
static void on_cancel_timeout(uv_timer_t *timer)
{
	struct fa_server *server = timer->data;
	struct fa_list *pos;

	fa_log(FA_LOG_WARNING, "%u requests are still in flight; nothing more is read",
	       server->context.n_requests);
	fa_list_for_each(pos, &server->context.sessions)
		fa_session_pause(fa_container_of(pos, struct fa_session, link), FA_PAUSE_DRAIN);
	fa_drain_advance(server);
}

static void on_drain_timeout(uv_timer_t *timer)
{
	struct fa_server *server = timer->data;
	struct fa_list *pos;

	fa_log(FA_LOG_WARNING, "%u requests did not end in time and are cancelled",
	       server->context.n_requests);
	fa_list_for_each(pos, &server->context.sessions)
		fa_request_cancel_all(fa_container_of(pos, struct fa_session, link), -ESHUTDOWN);
	uv_timer_start(&server->drain_timer, on_cancel_timeout, CANCEL_MS, 0);
}

static void on_flush_timeout(uv_timer_t *timer)
{
	start_stop(timer->data);
}

static void on_stopped(uv_timer_t *timer)
{
	fa_server_finish(timer->data);
}

/* The sessions are freed later, so the list stays valid. */
static void close_sessions(struct fa_server *server, bool before_hello_only)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &server->context.sessions) {
		struct fa_session *session = fa_container_of(pos, struct fa_session, link);

		if (!before_hello_only || session->state == FA_SESSION_CONNECTED)
			fa_session_close(session);
	}
}

static void stop_listening(struct fa_server *server)
{
	struct fa_list *pos;

	server->context.state = FA_DAEMON_DRAINING;
	fa_accept_stop(server);
	uv_timer_stop(&server->idle_timer);
	server->draining(server->userdata);
	close_sessions(server, true);
	fa_list_for_each(pos, &server->context.sessions)
		fa_registration_abort(fa_container_of(pos, struct fa_session, link), -ESHUTDOWN,
		                      "the daemon is stopping");
}

void fa_drain_start(struct fa_server *server)
{
	if (server->context.state != FA_DAEMON_RUNNING)
		return;
	fa_log(FA_LOG_INFO, "stopping; %u requests in flight", server->context.n_requests);
	stop_listening(server);
	uv_timer_start(&server->drain_timer, on_drain_timeout,
	               server->context.config.drain_timeout_ms, 0);
	fa_drain_advance(server);
}

void fa_drain_lost(struct fa_server *server)
{
	if (server->context.state > FA_DAEMON_DRAINING)
		return;
	if (server->context.state == FA_DAEMON_RUNNING)
		stop_listening(server);
	uv_timer_start(&server->drain_timer, on_drain_timeout, LOST_MS, 0);
	fa_drain_advance(server);
}

void fa_drain_force(struct fa_server *server)
{
	if (server->context.state >= FA_DAEMON_STOPPING)
		return;
	fa_log(FA_LOG_WARNING, "stopping at once; %u requests in flight",
	       server->context.n_requests);
	if (server->context.state == FA_DAEMON_RUNNING)
		stop_listening(server);
	start_stop(server);
}

static void start_flush(struct fa_server *server)
{
	server->context.state = FA_DAEMON_FLUSHING;
	uv_timer_start(&server->drain_timer, on_flush_timeout, FLUSH_MS, 0);
}

static void start_stop(struct fa_server *server)
{
	server->context.state = FA_DAEMON_STOPPING;
	uv_timer_stop(&server->drain_timer);
	close_sessions(server, false);
	fa_drain_advance(server);
}

void fa_drain_advance(struct fa_server *server)
{
	if (server->context.state == FA_DAEMON_DRAINING && !server->context.n_requests &&
	    !is_importing(server))
		start_flush(server);
	if (server->context.state == FA_DAEMON_FLUSHING && !is_unsent(server))
		start_stop(server);
	if (server->context.state == FA_DAEMON_STOPPING && !server->context.n_sessions &&
	    fa_importer_is_idle(&server->context.importer)) {
		server->context.state = FA_DAEMON_STOPPED;
		/* Finishes later, as the caller may still use the engine. */
		uv_timer_start(&server->drain_timer, on_stopped, 0, 0);
	}
}
