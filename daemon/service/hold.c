#include "daemon/service/hold.h"

#include "common/cleanup.h"
#include "daemon/service/dispatch.h"
#include "daemon/service/server.h"
#include "daemon/session/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct fa_held_packet {
	struct fa_list link;
	struct fa_session *session;
	uint64_t deadline_ns;
	int fds[FA_WIRE_FDS_MAX];
	size_t n_fds, length;
	_Alignas(8) unsigned char bytes[];
};

struct connection {
	struct fa_list link;
	uint64_t deadline_ns;
	uid_t uid;
	int fd;
};

static void on_timer(uv_timer_t *timer);

/* The timer ends when the oldest held packet or connection has waited enough. */
static void start_timer(struct fa_server *server)
{
	struct fa_hold *hold = &server->hold;
	uint64_t now = fa_now_ns(), deadline = FA_NS_NEVER;

	if (!fa_list_empty(&hold->packets))
		deadline = fa_container_of(hold->packets.next, struct fa_held_packet, link)
		                   ->deadline_ns;
	if (!fa_list_empty(&hold->connections)) {
		uint64_t other = fa_container_of(hold->connections.next, struct connection, link)
		                         ->deadline_ns;

		deadline = other < deadline ? other : deadline;
	}
	if (deadline == FA_NS_NEVER)
		uv_timer_stop(&hold->timer);
	else
		uv_timer_start(&hold->timer, on_timer,
		               deadline > now ? (deadline - now) / FA_NS_PER_MS + 1 : 0, 0);
}

/* ---- packets */

static void packet_free(struct fa_held_packet *held)
{
	struct fa_session *session = held->session;

	fa_list_remove(&held->link);
	session->held = NULL;
	fa_fd_reaper_add_rejected(session->context->reaper, session->tenant, held->fds,
	                          held->n_fds);
	free(held);
}

bool fa_hold_packet(struct fa_session *session, const void *bytes, size_t length, int *fds,
                    size_t n_fds)
{
	struct fa_server *server = fa_server_of(session->context);
	const uid_t uid = session->peer.uid;
	struct fa_held_packet *held = session->held;
	unsigned int n = 0, n_of_uid = 0;
	struct fa_list *pos;

	if (session->context->state != FA_DAEMON_RUNNING ||
	    !fa_tenants_are_ending(&session->context->tenants, uid))
		return false;
	if (held)
		return fa_now_ns() < held->deadline_ns;
	fa_list_for_each(pos, &server->hold.packets) {
		++n;
		n_of_uid += fa_container_of(pos, struct fa_held_packet, link)->session->peer.uid ==
		            uid;
	}
	if (n >= FA_HOLD_MAX || n_of_uid >= FA_HOLD_MAX / 2)
		return false;
	held = malloc(sizeof(*held) + length);
	if (!held)
		return false;
	*held = (struct fa_held_packet){
		.session = session,
		.deadline_ns = fa_deadline_ns(FA_HOLD_NS),
		.n_fds = n_fds,
		.length = length,
	};
	memcpy(held->bytes, bytes, length);
	for (size_t i = 0; i < n_fds; ++i)
		held->fds[i] = fa_steal_fd(&fds[i]);
	fa_list_append(&server->hold.packets, &held->link);
	session->held = held;
	fa_session_pause(session, FA_PAUSE_HELD);
	start_timer(server);
	return true;
}

void fa_hold_forget(struct fa_session *session)
{
	if (session->held)
		packet_free(session->held);
}

static void judge_packet(struct fa_held_packet *held)
{
	struct fa_session *session = fa_session_ref(held->session);
	const size_t n_fds = held->n_fds;
	int fds[FA_WIRE_FDS_MAX];
	bool is_held;

	/* The handler takes descriptors, and may close the session, which frees @held. */
	memcpy(fds, held->fds, sizeof(fds));
	held->n_fds = 0;
	is_held = fa_dispatch_held(session, held->bytes, held->length, fds, n_fds);
	if (is_held) {
		held->n_fds = n_fds;
	} else {
		fa_fd_reaper_add_rejected(session->context->reaper, session->tenant, fds, n_fds);
		if (session->held)
			packet_free(session->held);
		fa_session_resume(session, FA_PAUSE_HELD);
	}
	fa_session_unref(session);
}

/* ---- connections */

static void connection_free(struct connection *connection)
{
	fa_list_remove(&connection->link);
	free(connection);
}

bool fa_hold_connection(struct fa_server *server, int fd)
{
	struct connection *connection;
	struct ucred peer;
	socklen_t size = sizeof(peer);
	unsigned int n = 0, n_of_uid = 0;
	struct fa_list *pos;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
	    !fa_tenants_are_ending(&server->context.tenants, peer.uid))
		return false;
	fa_list_for_each(pos, &server->hold.connections) {
		++n;
		n_of_uid += fa_container_of(pos, struct connection, link)->uid == peer.uid;
	}
	if (n >= FA_HOLD_MAX || n_of_uid >= FA_HOLD_MAX / 2)
		return false;
	connection = fa_new(struct connection);
	if (!connection)
		return false;
	connection->fd = fd;
	connection->uid = peer.uid;
	connection->deadline_ns = fa_deadline_ns(FA_HOLD_NS);
	fa_list_append(&server->hold.connections, &connection->link);
	start_timer(server);
	return true;
}

static void judge_connection(struct fa_server *server, struct connection *connection)
{
	bool last = server->context.state != FA_DAEMON_RUNNING ||
	            fa_now_ns() >= connection->deadline_ns ||
	            !fa_tenants_are_ending(&server->context.tenants, connection->uid);

	if (fa_accept_again(server, connection->fd, last))
		connection_free(connection);
}

/* ---- when */

static void judge_all(struct fa_server *server)
{
	struct fa_list *pos, *tmp;

	/* No session ends at once, so only the judged entry leaves the list. */
	fa_list_for_each_safe(pos, tmp, &server->hold.packets)
		judge_packet(fa_container_of(pos, struct fa_held_packet, link));
	fa_list_for_each_safe(pos, tmp, &server->hold.connections)
		judge_connection(server, fa_container_of(pos, struct connection, link));
	start_timer(server);
}

static void on_timer(uv_timer_t *timer)
{
	judge_all(timer->data);
}

/* Not at once: the object that ended may still be in its destructor. */
static void on_ended(struct fa_tenants *tenants)
{
	struct fa_server *server = fa_container_of(tenants, struct fa_server, context.tenants);

	if (!fa_list_empty(&server->hold.packets) || !fa_list_empty(&server->hold.connections))
		uv_timer_start(&server->hold.timer, on_timer, 0, 0);
}

void fa_hold_finish(struct fa_server *server)
{
	judge_all(server);
	server->context.tenants.ended = NULL;
}

void fa_hold_init(struct fa_server *server)
{
	fa_list_init(&server->hold.packets);
	fa_list_init(&server->hold.connections);
	(void)uv_timer_init(server->context.loop, &server->hold.timer);
	server->hold.timer.data = server;
	server->context.tenants.ended = on_ended;
}
