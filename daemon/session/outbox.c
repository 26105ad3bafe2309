#include "daemon/session/outbox.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/packet.h"
#include "daemon/session/context.h"
#include "daemon/session/session.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* Strings have at most FA_WIRE_TEXT_BYTES_MAX. */
#define SEND_BYTES 4096
/* Bounds what a session sends in a turn: each message is a system call. */
#define SENT_PER_TURN 16
/* At the limit, received descriptors of all sessions are counted after so many new charges or so
 * much time. */
#define SENT_CHECK_FDS 8
#define SENT_CHECK_NS (5 * FA_NS_PER_MS)

struct outgoing {
	struct fa_list link;
	int fds[FA_SESSION_SEND_FDS];
	size_t n_fds;
	struct fa_charge charge;
	size_t length;
	char bytes[];
};

void fa_outbox_init(struct fa_outbox *outbox)
{
	fa_list_init(&outbox->messages);
}

static struct outgoing *first(struct fa_outbox *outbox)
{
	return fa_container_of(outbox->messages.next, struct outgoing, link);
}

static void outgoing_free(struct fa_outbox *outbox, struct outgoing *outgoing)
{
	fa_list_remove(&outgoing->link);
	--outbox->n_messages;
	outbox->bytes -= outgoing->length;
	fa_packet_close_fds(outgoing->fds, outgoing->n_fds);
	fa_charge_release(&outgoing->charge);
	free(outgoing);
}

void fa_outbox_clear(struct fa_session *session)
{
	while (!fa_list_empty(&session->outbox.messages))
		outgoing_free(&session->outbox, first(&session->outbox));
}

/* Releases soon, as the kernel limits all clients' descriptors in flight together. */
void fa_session_release_received(struct fa_session *session)
{
	int unread;

	if (!session->outbox.charge_sent.amount || session->fd < 0)
		return;
	if (!ioctl(session->fd, SIOCOUTQ, &unread) && !unread)
		fa_charge_release(&session->outbox.charge_sent);
}

/* Silent sessions may hold charges, too. */
static bool release_received_of_all(struct fa_context *context)
{
	const uint64_t now_ns = fa_now_ns();
	struct fa_list *pos;

	if (now_ns < context->sent_check_ns && context->sent_charged < SENT_CHECK_FDS)
		return false;
	context->sent_charged = 0;
	context->sent_check_ns = now_ns + SENT_CHECK_NS;
	fa_list_for_each(pos, &context->sessions)
		fa_session_release_received(fa_container_of(pos, struct fa_session, link));
	return true;
}

int fa_session_charge_fds(struct fa_session *session, uint64_t n, struct fa_charge *charge,
                          struct fa_error *error)
{
	int r;

	fa_session_release_received(session);
	r = fa_charge_add(charge, session->tenant, FA_RESOURCE_FDS, n, error);
	if (r == -EDQUOT && release_received_of_all(session->context))
		r = fa_charge_add(charge, session->tenant, FA_RESOURCE_FDS, n, error);
	if (r == 0)
		session->context->sent_charged += n;
	return r;
}

int fa_session_charge_fd(struct fa_session *session, struct fa_charge *charge,
                         struct fa_error *error)
{
	return fa_session_charge_fds(session, 1, charge, error);
}

static void update_pause(struct fa_session *session)
{
	uint64_t half = session->context->config.limits.session_out_bytes / 2;

	if (session->outbox.bytes > half)
		fa_session_pause(session, FA_PAUSE_OUTBOX);
	else
		fa_session_resume(session, FA_PAUSE_OUTBOX);
}

static int send_packet(struct fa_session *session, const void *bytes, size_t length, const int *fds,
                       size_t n_fds, struct fa_charge *charge)
{
	int r;

	r = fa_packet_send(session->fd, bytes, length, fds, n_fds, MSG_DONTWAIT);
	if (r == 0 && charge)
		fa_charge_move(&session->outbox.charge_sent, charge);
	return r;
}

/* False if the session has sent enough in this turn. A daemon that ends sends all. */
static bool may_send(struct fa_session *session)
{
	struct fa_outbox *outbox = &session->outbox;

	if (session->context->state != FA_DAEMON_RUNNING || session->context->is_lost)
		return true;
	if (outbox->turn != session->context->turns.number) {
		outbox->turn = session->context->turns.number;
		outbox->n_sent = 0;
	}
	return outbox->n_sent++ < SENT_PER_TURN;
}

static void flush(struct fa_session *session, bool all)
{
	struct fa_outbox *outbox = &session->outbox;
	int r = 0;

	while (!fa_list_empty(&outbox->messages) && (all || may_send(session))) {
		struct outgoing *outgoing = first(outbox);

		r = send_packet(session, outgoing->bytes, outgoing->length, outgoing->fds,
		                outgoing->n_fds, &outgoing->charge);
		if (r < 0)
			break;
		outgoing_free(outbox, outgoing);
	}
	if (r < 0 && r != -EAGAIN)
		fa_session_close(session);
	else
		update_pause(session);
}

void fa_outbox_flush(struct fa_session *session)
{
	flush(session, false);
}

void fa_outbox_flush_all(struct fa_context *context)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &context->sessions) {
		struct fa_session *session = fa_container_of(pos, struct fa_session, link);

		if (session->state != FA_SESSION_CLOSING)
			flush(session, true);
	}
}

static int enqueue(struct fa_session *session, const void *bytes, size_t length, int *fds,
                   size_t n_fds, struct fa_charge *charge)
{
	struct fa_outbox *outbox = &session->outbox;
	struct outgoing *outgoing;

	outgoing = malloc(sizeof(*outgoing) + length);
	if (!outgoing)
		return -ENOMEM;
	outgoing->n_fds = n_fds;
	for (size_t i = 0; i < n_fds; ++i)
		outgoing->fds[i] = fa_steal_fd(&fds[i]);
	outgoing->charge = (struct fa_charge){};
	if (charge)
		fa_charge_move(&outgoing->charge, charge);
	outgoing->length = length;
	memcpy(outgoing->bytes, bytes, length);
	fa_list_append(&outbox->messages, &outgoing->link);
	++outbox->n_messages;
	outbox->bytes += length;
	update_pause(session); /* also polls for writing */
	return 0;
}

void fa_session_send(struct fa_session *session, const struct fa_wire_message *message, int fd,
                     struct fa_charge *charge)
{
	fa_session_send_fds(session, message, &fd, fd >= 0, charge);
}

void fa_session_send_fds(struct fa_session *session, const struct fa_wire_message *message,
                         int *fds, size_t n_fds, struct fa_charge *charge)
{
	uint64_t buffer[SEND_BYTES / sizeof(uint64_t)];
	const void *bytes;
	size_t length;
	int r;

	if (session->state == FA_SESSION_CLOSING)
		goto out;
	r = fa_wire_encode(message, buffer, sizeof(buffer), &bytes, &length);
	if (r == 0)
		r = fa_list_empty(&session->outbox.messages) && may_send(session)
		            ? send_packet(session, bytes, length, fds, n_fds, charge)
		            : -EAGAIN;
	if (r == -EAGAIN)
		r = enqueue(session, bytes, length, fds, n_fds, charge);
	if (r < 0) {
		fa_log_about(&session->subject, FA_LOG_DEBUG, "%s cannot be sent: %s",
		             fa_wire_type_name(message->type), strerror(-r));
		fa_session_close(session);
	}
out:
	for (size_t i = 0; i < n_fds; ++i)
		fa_close_fdp(&fds[i]);
	if (charge)
		fa_charge_release(charge);
}

static struct fa_wire_message reply_message(uint64_t id, int status, const char *text)
{
	return (struct fa_wire_message){
		.id = id,
		.type = FA_WIRE_REPLY,
		.reply = { .status = status,
		           .text = { .text = text, .length = text ? strlen(text) : 0 } },
	};
}

void fa_session_reply(struct fa_session *session, uint64_t id, int status, const char *text)
{
	struct fa_wire_message message = reply_message(id, status, text);

	if (status < 0) {
		++session->n_errors;
		fa_log_about(&session->subject, FA_LOG_DEBUG, "%s: %s", strerror(-status), text);
	}
	fa_session_send(session, &message, -1, NULL);
}

void fa_session_refuse(struct fa_session *session, uint64_t id, int status, const char *text)
{
	if (session->state == FA_SESSION_CLOSING)
		return;
	fa_log_about(&session->subject, FA_LOG_INFO, "closing the connection: %s", text);
	fa_session_reply(session, id, status, text);
	if (session->state != FA_SESSION_CLOSING)
		flush(session, true);
	if (session->state != FA_SESSION_CLOSING)
		fa_session_close(session);
}

void fa_session_reject(struct fa_context *context, int fd, int status, const char *text)
{
	struct fa_wire_message message = reply_message(0, status, text);
	uint64_t buffer[SEND_BYTES / sizeof(uint64_t)];
	struct fa_tenant *tenant = NULL;
	struct ucred credentials;
	socklen_t size = sizeof(credentials);
	struct fa_peer peer;
	const void *bytes;
	size_t length;

	if (fa_wire_encode(&message, buffer, sizeof(buffer), &bytes, &length) == 0)
		(void)fa_packet_send(fd, bytes, length, NULL, 0, MSG_DONTWAIT);
	/* In the tenant's queue, a slow close delays no other tenant's. */
	if (fa_peer_read(fd, &peer) == 0)
		(void)fa_tenant_get(&context->tenants, peer.uid, peer.cgroup, &tenant);
	else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0)
		(void)fa_tenant_get(&context->tenants, credentials.uid, "", &tenant);
	fa_fd_reaper_add_connection(context->reaper, tenant, fd, NULL);
	fa_tenant_unref(tenant);
}
