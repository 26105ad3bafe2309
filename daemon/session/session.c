#include "daemon/session/session.h"

#include "common/cleanup.h"
#include "common/packet.h"
#include "daemon/session/completions.h"
#include "daemon/session/context.h"
#include "daemon/session/device_completion.h"
#include "daemon/session/submission_ring.h"
#include "daemon/session/timeline.h"
#include "daemon/session/turns.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* Messages of one session before others get their turn. */
#define READ_MAX 16

static void update_poll(struct fa_session *session);

/* ---- life */

struct fa_session *fa_session_ref(struct fa_session *session)
{
	++session->n_refs;
	return session;
}

/* The reaper closes it, as unread descriptors can block. */
static void close_socket(struct fa_session *session)
{
	if (session->fd >= 0)
		fa_fd_reaper_add_connection(session->context->reaper, session->tenant,
		                            fa_steal_fd(&session->fd), &session->charge_socket);
}

struct fa_session *fa_session_unref(struct fa_session *session)
{
	struct fa_context *context;
	struct fa_tenant *ending;

	if (!session || --session->n_refs)
		return NULL;
	context = session->context;
	ending = session->state == FA_SESSION_CLOSING ? session->tenant : NULL;
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
	fa_charge_release(&session->outbox.charge_sent);
	fa_charge_release(&session->charge_hello);
	fa_charge_release(&session->charge_socket);
	fa_charge_release(&session->charge_session);
	fa_tenant_unref(session->tenant);
	free(session);
	--context->n_sessions;
	if (ending)
		fa_tenant_ended(ending);
	context->hooks->session_freed(context);
	return NULL;
}

static void on_closed(uv_handle_t *handle)
{
	fa_session_unref(handle->data);
}

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
	fa_tenant_ending(session->tenant);
	fa_log_about(&session->subject, FA_LOG_DEBUG, "closing the session of \"%s\"",
	             session->name);
	fa_list_remove(&session->hello_link);
	fa_turn_forget(session);
	fa_device_completion_stop(session);
	fa_pinned_page_cancel(&session->timeline_pin);
	fa_peer_watch_stop(session);
	/* Closed before the socket, whose number may be reused. */
	uv_close((uv_handle_t *)&session->poll, on_closed);
	close_socket(session);
	fa_ring_close(session);
	fa_outbox_clear(session);
	close_streams(session);
	session->context->hooks->session_closing(session);
	while ((buffer = fa_id_table_pop(&session->buffers)))
		fa_registered_buffer_end(buffer);
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
	/* This reference lives until the engine returns the closed stream. */
	fa_session_ref(session);
	session->n_streams += id != FA_SESSION_STREAM_OWN;
	return 0;
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

/* True: packets with descriptors must wait. */
static bool has_too_many_rejected(const struct fa_session *session)
{
	return fa_tenant_reaper_queue(session->tenant)->n_rejected > FA_FD_REAPER_REJECTED_HARD_MAX;
}

struct descriptors {
	int fds[FA_PACKET_FDS_KERNEL_MAX];
	size_t n;
	unsigned int placeholders;
};

static bool read_packet(struct fa_session *session, struct descriptors *descriptors)
{
	struct fa_context *context = session->context;
	/* A packet stays in the socket if its descriptors must not come, or not now. */
	const bool peeks = session->ring || fa_fd_reaper_has_filter(context->reaper) ||
	                   has_too_many_rejected(session);
	bool fds_lost = false, has_fds = false, more;
	ssize_t n = 0;

	if (peeks) {
		n = fa_packet_peek(session->fd, context->packet, FA_WIRE_BYTES_MAX, &has_fds);
		if (n == -EAGAIN)
			return false;
	}
	if (session->ring) {
		(void)fa_completions_reap(session, true);
		if (session->state == FA_SESSION_CLOSING || !fa_ring_catch_up(session))
			return false;
	}
	if (has_fds && has_too_many_rejected(session)) {
		fa_session_pause(session, FA_PAUSE_REJECTED);
		return false;
	}
	if (has_fds)
		n = fa_fd_reaper_receive(context->reaper, session->tenant, session->fd,
		                         context->packet, FA_WIRE_BYTES_MAX, descriptors->fds,
		                         &descriptors->n, &fds_lost, &descriptors->placeholders);
	else if (!peeks)
		n = fa_packet_receive_all(session->fd, context->packet, FA_WIRE_BYTES_MAX,
		                          descriptors->fds, &descriptors->n, &fds_lost,
		                          MSG_DONTWAIT);
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
	/* Handles completions first that the client may have seen. */
	(void)fa_completions_reap(session, true);
	fa_device_completion_sync(context);
	if (session->state == FA_SESSION_CLOSING)
		return false;
	if (fds_lost)
		fa_context_warn_no_fds(context);
	more = context->hooks->packet(session, context->packet, (size_t)n, descriptors->fds,
	                              descriptors->n, fds_lost);
	/* The packet is dropped only now, as the client waits for the answer. */
	if (peeks && !has_fds && session->state != FA_SESSION_CLOSING &&
	    fa_packet_drop(session->fd) < 0)
		fa_session_close(session);
	return more;
}

static void discard_fds(struct fa_session *session, struct descriptors *descriptors,
                        uint64_t before)
{
	const struct fa_fd_reaper_queue *queue = fa_tenant_reaper_queue(session->tenant);

	for (size_t i = 0; i < descriptors->n && i < FA_PACKET_FDS_MAX; ++i)
		if (descriptors->placeholders & 1u << i)
			fa_close_fdp(&descriptors->fds[i]);
	fa_fd_reaper_add_rejected(session->context->reaper, session->tenant, descriptors->fds,
	                          descriptors->n);
	if (queue->n_rejected > before && queue->n_rejected > FA_FD_REAPER_REJECTED_SOFT_MAX)
		fa_session_pause(session, FA_PAUSE_REJECTED);
}

static void read_packets(struct fa_session *session)
{
	struct fa_turn_span span = fa_turn_begin(session);
	const uint64_t submitted = session->n_submitted;
	bool more = true;

	/* A message counts for all its requests. */
	for (unsigned int i = 0;
	     i < READ_MAX && session->n_submitted - submitted < READ_MAX && more; ++i) {
		struct descriptors descriptors;
		const uint64_t before = fa_tenant_reaper_queue(session->tenant)->n_rejected;
		const uint64_t reaped_ns = session->context->reaped_ns;

		if (!fa_turn_has_time(session) || !fa_completions_reap(session, false)) {
			/* An answer that could not be sent has closed it. */
			if (session->state != FA_SESSION_CLOSING)
				fa_turn_wait(session);
			break;
		}
		if (session->state == FA_SESSION_CLOSING)
			break;
		descriptors.n = descriptors.placeholders = 0;
		more = read_packet(session, &descriptors);
		discard_fds(session, &descriptors, before);
		more = more && session->state != FA_SESSION_CLOSING && !session->paused;
		/* What was reaped before belongs to other users, too. */
		fa_turn_end(session, &span, session->context->reaped_ns - reaped_ns);
	}
}

void fa_session_read(struct fa_session *session)
{
	if (session->state == FA_SESSION_CLOSING)
		return;
	if (session->hung_up)
		fa_session_close(session);
	else if (!session->paused)
		read_packets(session);
}

/* The client has gone while the session is paused. Closing takes time. */
static void hang_up(struct fa_session *session)
{
	session->hung_up = true;
	if (!fa_list_empty(&session->turn_link))
		return;
	if (fa_turn_has_time(session)) {
		struct fa_turn_span span = fa_turn_begin(session);

		fa_session_close(session);
		fa_turn_end(session, &span, 0);
	} else {
		fa_turn_wait(session);
	}
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct fa_session *session = fa_session_ref(poll->data);

	if (status < 0) {
		fa_session_close(session);
	} else if (events & UV_WRITABLE) {
		fa_outbox_flush(session);
		fa_context_drain_progress(session->context);
	}
	if (session->state != FA_SESSION_CLOSING) {
		if ((events & UV_READABLE) && !session->paused)
			fa_session_read(session);
		else if (events & UV_DISCONNECT)
			hang_up(session);
	}
	update_poll(session);
	fa_session_unref(session);
}

static void update_poll(struct fa_session *session)
{
	/* While paused, the end shows as a disconnect only. */
	int events = session->paused ? UV_DISCONNECT : UV_READABLE;

	if (session->state == FA_SESSION_CLOSING)
		return;
	/* Nothing more can come from the client. */
	if (session->hung_up) {
		(void)uv_poll_stop(&session->poll);
		session->poll_events = 0;
		return;
	}
	if (!fa_list_empty(&session->outbox.messages))
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
	/* Now fa_session_unref() frees the half-built session. */
	*session = (struct fa_session){
		.n_refs = 1, .context = context, .fd = -1, .peer_watch.pidfd = -1
	};
	fa_list_init(&session->link);
	fa_list_init(&session->hello_link);
	fa_list_init(&session->device_link);
	fa_list_init(&session->turn_link);
	fa_outbox_init(&session->outbox);
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
	/* Charged now: otherwise many connections could leave none for any Hello. */
	if (r == 0)
		r = fa_session_charge_fd(session, &session->charge_hello, error);
	if (r < 0)
		goto fail;

	r = fa_peer_watch_start(session, fd, error);
	if (r < 0) {
		r = fa_context_explain_no_fds(context, r, error);
		goto fail;
	}
	r = uv_poll_init(context->loop, &session->poll, fd);
	if (r < 0) {
		fa_peer_watch_stop(session);
		fa_fail(error, r, "the connection cannot be watched: %s", uv_strerror(r));
		goto fail;
	}
	session->fd = fd; /* consumed */
	session->poll.data = session;
	session->id = session->connection = ++context->last_session;
	session->privileged = session->peer.uid == 0 || session->peer.uid == context->uid;
	session->observer = session->privileged || session->peer.uid == context->observer_uid;
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
