#include "daemon/session/session.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/packet.h"
#include "daemon/session/completions.h"
#include "daemon/session/context.h"
#include "daemon/session/device_completion.h"
#include "daemon/session/submission_ring.h"
#include "daemon/session/timeline.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* Messages read from one session before the others have their turn. */
#define READ_MAX 16
/* All that is sent is short: strings are bounded by FA_WIRE_TEXT_BYTES_MAX. */
#define SEND_BYTES 4096
/* All sessions are looked through, as descriptors are short: not for each request, but when some
 * were charged since, or after a while. */
#define SENT_CHECK_FDS 8
#define SENT_CHECK_NS (5 * FA_NS_PER_MS)

/* An answer that waits for room in the socket. */
struct out {
	struct fa_list link;
	int fds[FA_SESSION_SEND_FDS];
	size_t n_fds;
	struct fa_charge charge;
	size_t length;
	char bytes[];
};

static void update_poll(struct fa_session *session);

/* ---- life */

struct fa_session *fa_session_ref(struct fa_session *session)
{
	++session->n_refs;
	return session;
}

/* What is unread may hold anything: it is not this thread that closes it. */
static void close_socket(struct fa_session *session)
{
	if (session->fd >= 0)
		fa_fd_reaper_add_connection(session->context->reaper, session->tenant,
		                            fa_steal_fd(&session->fd), &session->charge_socket);
}

struct fa_session *fa_session_unref(struct fa_session *session)
{
	struct fa_context *context;

	if (!session || --session->n_refs)
		return NULL;
	context = session->context;
	session->context->hooks->session_ended(session);
	fa_list_remove(&session->link);
	fa_list_remove(&session->hello_link);
	fa_id_table_deinit(&session->buffers);
	fa_engine_group_free(session->group);
	fa_ring_free(session);
	fa_timeline_end(session);
	fa_device_completion_close(session);
	if (session->completions)
		munmap(session->completions, FA_COMPLETION_PAGE_BYTES);
	close_socket(session);
	fa_charge_release(&session->charge_sent);
	fa_charge_release(&session->charge_hello);
	fa_charge_release(&session->charge_socket);
	fa_charge_release(&session->charge_session);
	fa_tenant_unref(session->tenant);
	free(session);
	--context->n_sessions;
	context->hooks->session_freed(context);
	return NULL;
}

static void on_closed(uv_handle_t *handle)
{
	fa_session_unref(handle->data);
}

static void out_free(struct fa_session *session, struct out *out)
{
	fa_list_remove(&out->link);
	--session->n_out;
	session->out_bytes -= out->length;
	fa_packet_close_fds(out->fds, out->n_fds);
	fa_charge_release(&out->charge);
	free(out);
}

/* Cancels what is in flight on all streams, and ends the streams. */
static void close_streams(struct fa_session *session)
{
	for (unsigned int i = 0; i < FA_SESSION_STREAMS; ++i) {
		struct fa_stream *stream = fa_steal_ptr(session->streams[i].stream);

		if (stream) {
			session->n_streams -= i != FA_SESSION_STREAM_OWN;
			fa_engine_stream_close(session->context->engine, stream, -ECANCELED);
		}
	}
}

void fa_session_close(struct fa_session *session)
{
	struct fa_registered_buffer *buffer;

	if (session->state == FA_SESSION_CLOSING)
		return;
	session->state = FA_SESSION_CLOSING;
	fa_log_about(&session->subject, FA_LOG_DEBUG, "closing the session of \"%s\"",
	             session->name);
	fa_list_remove(&session->hello_link);
	fa_device_completion_stop(session);
	fa_pinned_page_cancel(&session->timeline_pin);
	/* Before the socket: the loop must not wait for a number that may be reused. */
	uv_close((uv_handle_t *)&session->poll, on_closed);
	close_socket(session);
	fa_ring_close(session);
	while (!fa_list_empty(&session->out))
		out_free(session, fa_container_of(session->out.next, struct out, link));
	close_streams(session);
	session->context->hooks->session_closing(session);
	while ((buffer = fa_id_table_pop(&session->buffers)))
		fa_registered_buffer_unref(buffer);
	session->buffer_bytes = 0;
	session->n_device_buffers = 0;
}

int fa_session_stream_new(struct fa_session *session, uint32_t id, int priority)
{
	struct fa_session_stream *slot = &session->streams[id];
	int r = 0;

	if (!session->group)
		r = fa_engine_group_new(session->context->engine, &session->group);
	if (r == 0)
		r = fa_engine_stream_new(session->group, priority,
		                         id == FA_SESSION_STREAM_OWN ? &session->own_slot
		                                                     : &session->completions[id],
		                         slot->next_value, session, &slot->stream);
	if (r < 0)
		return r;
	if (session->ring && id != FA_SESSION_STREAM_OWN)
		fa_engine_stream_set_records(slot->stream, fa_ring_records(session), id);
	fa_device_completion_stream(session, id);
	/* Given back when the engine returns the stream as closed. */
	fa_session_ref(session);
	session->n_streams += id != FA_SESSION_STREAM_OWN;
	return 0;
}

/* ---- sending */

/*
 * Descriptors on their way count as open files of this process's user, and the
 * kernel has a bound for them that all clients share. So they stay charged until
 * the client is seen to have received everything.
 */
void fa_session_release_received(struct fa_session *session)
{
	int unread;

	if (!session->charge_sent.amount || session->fd < 0)
		return;
	if (!ioctl(session->fd, SIOCOUTQ, &unread) && !unread)
		fa_charge_release(&session->charge_sent);
}

/* Has what was received released for others, whose sessions say nothing just now. */
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

static void pause_if_unread(struct fa_session *session)
{
	uint64_t half = session->context->config.limits.session_out_bytes / 2;

	if (session->out_bytes > half)
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
		fa_charge_move(&session->charge_sent, charge);
	return r;
}

/* Sends what waits, as far as the socket takes it. */
static int flush(struct fa_session *session)
{
	while (!fa_list_empty(&session->out)) {
		struct out *out = fa_container_of(session->out.next, struct out, link);
		int r;

		r = send_packet(session, out->bytes, out->length, out->fds, out->n_fds,
		                &out->charge);
		if (r < 0)
			return r;
		out_free(session, out);
	}
	return 0;
}

static int enqueue(struct fa_session *session, const void *bytes, size_t length, int *fds,
                   size_t n_fds, struct fa_charge *charge)
{
	struct out *out;

	out = malloc(sizeof(*out) + length);
	if (!out)
		return -ENOMEM;
	out->n_fds = n_fds;
	for (size_t i = 0; i < n_fds; ++i)
		out->fds[i] = fa_steal_fd(&fds[i]);
	out->charge = (struct fa_charge){};
	if (charge)
		fa_charge_move(&out->charge, charge);
	out->length = length;
	memcpy(out->bytes, bytes, length);
	fa_list_append(&session->out, &out->link);
	++session->n_out;
	session->out_bytes += length;
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
		r = fa_list_empty(&session->out)
		            ? send_packet(session, bytes, length, fds, n_fds, charge)
		            : -EAGAIN;
	if (r == -EAGAIN) {
		r = enqueue(session, bytes, length, fds, n_fds, charge);
		if (r == 0) {
			pause_if_unread(session);
			update_poll(session);
		}
	}
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
	if (session->state == FA_SESSION_CLOSING)
		return;
	fa_session_close(session);
}

void fa_session_reject(struct fa_context *context, int fd, int status, const char *text)
{
	struct fa_wire_message message = reply_message(0, status, text);
	uint64_t buffer[SEND_BYTES / sizeof(uint64_t)];
	struct fa_tenant *tenant = NULL;
	struct fa_peer peer;
	const void *bytes;
	size_t length;

	if (fa_wire_encode(&message, buffer, sizeof(buffer), &bytes, &length) == 0)
		(void)fa_packet_send(fd, bytes, length, NULL, 0, MSG_DONTWAIT);
	/* If closing it takes long, others who are turned away do not wait for it. */
	if (fa_peer_read(fd, &peer) == 0)
		(void)fa_tenant_get(&context->tenants, peer.uid, peer.cgroup, &tenant);
	fa_fd_reaper_add_connection(context->reaper, tenant, fd, NULL);
	fa_tenant_unref(tenant);
}

/* ---- receiving */

void fa_session_pause(struct fa_session *session, enum fa_session_pause reason)
{
	session->paused |= reason;
	update_poll(session);
}

void fa_session_resume(struct fa_session *session, enum fa_session_pause reason)
{
	bool was_paused = session->paused;

	session->paused &= ~(unsigned int)reason;
	update_poll(session);
	if (was_paused && !session->paused && session->ring && session->state == FA_SESSION_READY)
		fa_ring_activate(session->ring);
}

/* Whether there is a packet that brings descriptors. It stays where it is, and they do, too. */
static bool next_has_fds(int socket)
{
	struct msghdr msg = {};

	return recvmsg(socket, &msg, MSG_PEEK | MSG_DONTWAIT) >= 0 && (msg.msg_flags & MSG_CTRUNC);
}

/* So much that its user sent for nothing is not closed, by whichever of its connections, that no
 * more is received. What brings no descriptors is. */
static bool must_not_receive(struct fa_session *session)
{
	if (fa_tenant_reaper_queue(session->tenant)->n_rejected <= FA_FD_REAPER_REJECTED_HARD_MAX ||
	    !next_has_fds(session->fd))
		return false;
	fa_session_pause(session, FA_PAUSE_REJECTED);
	return true;
}

/* Handles one packet. Returns whether to look for the next one at once. */
static bool read_packet(struct fa_session *session, int *fds, size_t *ret_n_fds)
{
	struct fa_context *context = session->context;
	bool lost;
	ssize_t n;
	char byte;

	/* What the client put into its ring before it sent a packet comes first. As long as
	 * there is more of that than a turn, or nothing is to be read, the packet stays where
	 * it is. */
	if (session->ring) {
		if (recv(session->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
		    (errno == EAGAIN || errno == EINTR))
			return false;
		fa_completions_reap_all(context);
		if (session->state == FA_SESSION_CLOSING || !fa_ring_catch_up(session))
			return false;
	}
	if (must_not_receive(session))
		return false;
	n = fa_packet_receive_all(session->fd, context->packet, FA_WIRE_BYTES_MAX, fds, ret_n_fds,
	                          &lost, MSG_DONTWAIT);
	if (n == -EAGAIN)
		return false;
	if (n == -EMSGSIZE) {
		fa_session_refuse(session, 0, -EPROTO,
		                  "the packet is longer than 65536 bytes, the most a message may "
		                  "have");
		return false;
	}
	if (n == -E2BIG) {
		fa_session_refuse(session, 0, -EPROTO,
		                  "the packet carries more than 8 descriptors");
		return false;
	}
	if (n <= 0) {
		fa_session_close(session);
		return false;
	}
	++session->n_messages;
	fa_loop_spin_note(&context->spin);
	/* What the client has seen in its page counts no more. */
	fa_completions_reap_all(context);
	fa_device_completion_sync(context);
	if (session->state == FA_SESSION_CLOSING)
		return false;
	if (lost)
		fa_context_warn_no_fds(context);
	return context->hooks->packet(session, context->packet, (size_t)n, fds, *ret_n_fds, lost);
}

/* What nobody has taken. */
static void discard_fds(struct fa_session *session, int *fds, size_t n_fds)
{
	const struct fa_fd_reaper_queue *queue = fa_tenant_reaper_queue(session->tenant);
	uint64_t before = queue->n_rejected;

	fa_fd_reaper_add_rejected(session->context->reaper, session->tenant, fds, n_fds);
	if (queue->n_rejected > before && queue->n_rejected > FA_FD_REAPER_REJECTED_SOFT_MAX)
		fa_session_pause(session, FA_PAUSE_REJECTED);
}

static void read_packets(struct fa_session *session)
{
	uint64_t submitted = session->n_submitted;
	bool more = true;

	/* A message may be many requests: those of all layers of a step. */
	for (unsigned int i = 0;
	     i < READ_MAX && session->n_submitted - submitted < READ_MAX && more; ++i) {
		int fds[FA_PACKET_FDS_KERNEL_MAX];
		size_t n_fds = 0;

		more = read_packet(session, fds, &n_fds);
		if (n_fds)
			discard_fds(session, fds, n_fds);
		more = more && session->state != FA_SESSION_CLOSING && !session->paused;
	}
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct fa_session *session = fa_session_ref(poll->data);
	int r;

	if (status < 0) {
		fa_session_close(session);
	} else if (events & UV_WRITABLE) {
		r = flush(session);
		if (r < 0 && r != -EAGAIN)
			fa_session_close(session);
		else
			pause_if_unread(session);
		fa_context_drain_progress(session->context);
	}
	if (session->state != FA_SESSION_CLOSING) {
		if ((events & UV_READABLE) && !session->paused)
			read_packets(session);
		else if (events & UV_DISCONNECT)
			fa_session_close(session);
	}
	update_poll(session);
	fa_session_unref(session);
}

static void update_poll(struct fa_session *session)
{
	/* While nothing is read, the end must be seen another way. */
	int events = session->paused ? UV_DISCONNECT : UV_READABLE;

	if (session->state == FA_SESSION_CLOSING)
		return;
	if (!fa_list_empty(&session->out))
		events |= UV_WRITABLE;
	if (events == session->poll_events)
		return;
	if (uv_poll_start(&session->poll, events, on_poll) < 0)
		fa_session_close(session);
	else
		session->poll_events = events;
}

int fa_session_new(struct fa_context *context, int fd, struct fa_error *error,
                   struct fa_session **ret_session)
{
	struct fa_session *session;
	int r;

	session = fa_new(struct fa_session);
	if (!session)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for another session");
	/* Half-built, it is freed by its last reference. */
	*session = (struct fa_session){ .n_refs = 1, .context = context, .fd = -1 };
	fa_list_init(&session->link);
	fa_list_init(&session->hello_link);
	fa_list_init(&session->device_link);
	fa_list_init(&session->out);
	fa_list_init(&session->blocked);
	fa_list_init(&session->kv.steps);
	session->kv.record = UINT32_MAX;
	++context->n_sessions;
	for (unsigned int i = 0; i < FA_SESSION_STREAMS; ++i)
		session->streams[i].next_value = 1;

	r = fa_peer_read(fd, &session->peer);
	if (r < 0) {
		fa_fail(error, r, "the kernel does not tell who connected: %s", strerror(-r));
		r = fa_context_explain_no_fds(context, r, error);
		goto fail;
	}
	r = fa_tenant_get(&context->tenants, session->peer.uid, session->peer.cgroup,
	                  &session->tenant);
	if (r < 0) {
		fa_fail(error, r, "the daemon has no memory for another account");
		goto fail;
	}
	r = fa_charge_add(&session->charge_session, session->tenant, FA_RESOURCE_SESSIONS, 1,
	                  error);
	if (r == 0)
		r = fa_session_charge_fd(session, &session->charge_socket, error);
	/* A crowd that was let in could else not be welcomed, not one of it. */
	if (r == 0)
		r = fa_session_charge_fd(session, &session->charge_hello, error);
	if (r < 0)
		goto fail;

	r = uv_poll_init(context->loop, &session->poll, fd);
	if (r < 0) {
		fa_fail(error, r, "the connection cannot be watched: %s", uv_strerror(r));
		goto fail;
	}
	session->fd = fd; /* consumed from here on */
	session->poll.data = session;
	session->id = session->connection = ++context->last_session;
	session->privileged = session->peer.uid == 0 || session->peer.uid == context->uid;
	session->subject = (struct fa_log_subject){ .session = session->id,
		                                    .uid = session->peer.uid,
		                                    .pid = session->peer.pid,
		                                    .cgroup = session->tenant->cgroup };
	session->hello_deadline_ns = fa_deadline_ns(FA_SESSION_HELLO_NS);
	fa_list_append(&context->sessions, &session->link);
	fa_list_append(&context->hello_pending, &session->hello_link);
	fa_log_about(&session->subject, FA_LOG_DEBUG, "connected");
	update_poll(session);
	*ret_session = session;
	return 0;
fail:
	fa_session_unref(session);
	return r;
}
