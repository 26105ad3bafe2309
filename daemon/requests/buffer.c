#include "daemon/requests/buffer.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct fa_registration {
	struct fa_session *session;
	struct fa_registered_buffer *buffer;
	uv_timer_t timer;
};

static const char *kind_name(unsigned int kind)
{
	switch (kind) {
	case FA_WIRE_BUFFER_HOST_FD:
		return "HOST_FD";
	case FA_WIRE_BUFFER_ARENA:
		return "ARENA";
	case FA_WIRE_BUFFER_CUDA_IPC:
		return "CUDA_IPC";
	case FA_WIRE_BUFFER_CUDA_FD:
		return "CUDA_FD";
	default:
		return NULL;
	}
}

static bool is_zero(const uint8_t *bytes, size_t length)
{
	while (length)
		if (bytes[--length])
			return false;
	return true;
}

static int check_kind(const struct fa_context *context, const struct fa_wire_buffer_register *body,
                      struct fa_error *error)
{
	if (!kind_name(body->kind))
		return fa_fail(error, -ENOTSUP,
		               "kind %u is not supported; expected HOST_FD (%d), ARENA (%d), "
		               "CUDA_IPC (%d) or CUDA_FD (%d)",
		               body->kind, FA_WIRE_BUFFER_HOST_FD, FA_WIRE_BUFFER_ARENA,
		               FA_WIRE_BUFFER_CUDA_IPC, FA_WIRE_BUFFER_CUDA_FD);
	if ((body->kind == FA_WIRE_BUFFER_CUDA_IPC && !context->ops->memory_import_ipc) ||
	    (body->kind == FA_WIRE_BUFFER_CUDA_FD && !context->ops->memory_import_pieces))
		return fa_fail(error, -ENOTSUP,
		               "kind %s is memory of a GPU, and this daemon's backend is %s; "
		               "expected HOST_FD (%d) or ARENA (%d)",
		               kind_name(body->kind), context->info.backend, FA_WIRE_BUFFER_HOST_FD,
		               FA_WIRE_BUFFER_ARENA);
	return 0;
}

static int check_parts(const struct fa_wire_buffer_register *body, size_t n_fds,
                       struct fa_error *error)
{
	const char *kind = kind_name(body->kind);
	bool handle = !is_zero(body->handle, sizeof(body->handle));
	uint64_t end;

	if (body->kind == FA_WIRE_BUFFER_HOST_FD && n_fds != 1)
		return fa_fail(error, -EINVAL,
		               "kind HOST_FD came with %zu descriptors; expected one, a memfd",
		               n_fds);
	if ((body->kind == FA_WIRE_BUFFER_ARENA || body->kind == FA_WIRE_BUFFER_CUDA_IPC) && n_fds)
		return fa_fail(error, -EINVAL, "kind %s came with %zu descriptors; expected none",
		               kind, n_fds);
	if (body->kind == FA_WIRE_BUFFER_ARENA && body->offset)
		return fa_fail(error, -EINVAL, "offset is %" PRIu64 "; expected 0 with kind ARENA",
		               body->offset);
	if (handle != (body->kind == FA_WIRE_BUFFER_CUDA_IPC))
		return fa_fail(error, -EINVAL, "kind %s came %s a handle; only CUDA_IPC has one",
		               kind, handle ? "with" : "without");
	if (body->kind != FA_WIRE_BUFFER_CUDA_FD && (body->n_pieces || body->n_piece_bytes))
		return fa_fail(error, -EINVAL, "kind %s came with pieces; only CUDA_FD has them",
		               kind);
	if (body->kind == FA_WIRE_BUFFER_CUDA_FD &&
	    (!body->n_pieces || body->n_pieces > FA_WIRE_PIECES_MAX))
		return fa_fail(error, -EINVAL, "n_pieces is %" PRIu32 "; expected 1 to %d",
		               body->n_pieces, FA_WIRE_PIECES_MAX);
	if (__builtin_add_overflow(body->offset, body->bytes, &end))
		return fa_fail(error, -EINVAL,
		               "offset %" PRIu64 " and bytes %" PRIu64
		               " together are more than 64 bits can count",
		               body->offset, body->bytes);
	return 0;
}

static int check_register(struct fa_session *session, const struct fa_wire_buffer_register *body,
                          size_t n_fds, struct fa_error *error)
{
	const struct fa_registration *waiting = session->registration;
	uint64_t max = session->context->config.limits.session_buffers;
	int r;

	if (session->context->state != FA_DAEMON_RUNNING)
		return fa_fail(error, -ESHUTDOWN, "the daemon is stopping");
	if (!body->buffer)
		return fa_fail(error, -EINVAL, "buffer is 0; expected an id of at least 1");
	if (fa_id_table_find(&session->buffers, body->buffer) ||
	    (waiting && waiting->buffer->id == body->buffer))
		return fa_fail(error, -EEXIST, "buffer %" PRIu32 " is registered already",
		               body->buffer);
	r = check_kind(session->context, body, error);
	if (r < 0)
		return r;
	if (body->flags & ~FA_WIRE_BUFFER_READ_ONLY)
		return fa_fail(error, -ENOTSUP,
		               "flags %#" PRIx32
		               " are not supported; expected none but %#x, READ_ONLY",
		               body->flags, FA_WIRE_BUFFER_READ_ONLY);
	if (!body->bytes)
		return fa_fail(error, -EINVAL, "bytes is 0; expected at least 1");
	r = check_parts(body, n_fds, error);
	if (r < 0)
		return r;
	if (waiting && body->n_pieces > body->n_piece_bytes)
		return fa_fail(error, -EBUSY,
		               "buffer %" PRIu32
		               " waits for %zu more pieces; expected them, as one "
		               "registration can wait at a time",
		               waiting->buffer->id,
		               waiting->buffer->n_pieces_wanted - waiting->buffer->n_pieces);
	if (session->buffers.n_used + !!waiting >= max)
		return fa_fail(error, -EDQUOT,
		               "1 more would exceed the limit session_buffers, which is %" PRIu64
		               " for a session",
		               max);
	return 0;
}

static int buffer_new(struct fa_session *session, const struct fa_wire_message *message,
                      struct fa_error *error, struct fa_registered_buffer **ret_buffer)
{
	const struct fa_wire_buffer_register *body = &message->buffer_register;
	struct fa_registered_buffer *buffer = NULL;
	int r;

	r = fa_registered_buffer_new(&session->context->importer, error, &buffer);
	if (r < 0)
		return r;
	buffer->id = body->buffer;
	buffer->message_id = message->id;
	buffer->deadline_ns = message->timeout_ns ? fa_deadline_ns(message->timeout_ns)
	                                          : FA_NS_NEVER;
	buffer->kind = (enum fa_wire_buffer_kind)body->kind;
	buffer->read_only = body->flags & FA_WIRE_BUFFER_READ_ONLY;
	buffer->offset = body->offset;
	buffer->bytes = body->bytes;
	memcpy(buffer->handle, body->handle, sizeof(buffer->handle));
	buffer->pid = body->pid;
	buffer->owner = session;
	if (body->n_pieces) {
		buffer->pieces = calloc(body->n_pieces, sizeof(*buffer->pieces));
		if (!buffer->pieces) {
			fa_registered_buffer_unref(buffer);
			return fa_fail(error, -ENOMEM,
			               "the daemon has no memory for %" PRIu32 " pieces",
			               body->n_pieces);
		}
		buffer->n_pieces_wanted = body->n_pieces;
	}
	*ret_buffer = buffer;
	return 0;
}

static bool is_on_device(const struct fa_context *context, enum fa_wire_buffer_kind kind)
{
	return kind == FA_WIRE_BUFFER_CUDA_IPC || kind == FA_WIRE_BUFFER_CUDA_FD ||
	       (kind == FA_WIRE_BUFFER_ARENA && context->info.memory_bytes);
}

/* Rounds as the device does: a resumed session passes the same arena as pieces of that size. */
static uint64_t arena_bytes(const struct fa_context *context, uint64_t bytes)
{
	const uint64_t unit = context->info.arena_granularity;
	uint64_t rounded;

	if (!unit || __builtin_add_overflow(bytes, unit - 1, &rounded))
		return bytes;
	return rounded - rounded % unit;
}

/* Charging all pieces in advance keeps a later one from exceeding the limit. */
static int charge(struct fa_session *session, struct fa_registered_buffer *buffer,
                  struct fa_error *error)
{
	uint64_t n_fds = buffer->kind == FA_WIRE_BUFFER_CUDA_IPC  ? 0
	                 : buffer->kind == FA_WIRE_BUFFER_CUDA_FD ? buffer->n_pieces_wanted
	                                                          : 1;
	int r;

	r = fa_charge_add(&buffer->charge_count, session->tenant, FA_RESOURCE_BUFFERS, 1, error);
	if (r == 0)
		r = fa_charge_add(&buffer->charge_pieces, session->tenant, FA_RESOURCE_PIECES,
		                  buffer->n_pieces_wanted, error);
	/* For CUDA_FD add_pieces() charges. */
	if (r == 0 && buffer->kind != FA_WIRE_BUFFER_CUDA_FD)
		r = fa_charge_add(&buffer->charge_bytes, session->tenant,
		                  is_on_device(session->context, buffer->kind)
		                          ? FA_RESOURCE_DEVICE_BYTES
		                          : FA_RESOURCE_BUFFER_BYTES,
		                  buffer->kind == FA_WIRE_BUFFER_ARENA
		                          ? arena_bytes(session->context, buffer->bytes)
		                          : buffer->bytes,
		                  error);
	if (r == 0 && n_fds)
		r = fa_session_charge_fds(session, n_fds, &buffer->charge_fds, error);
	return r;
}

static int check_received(const int *fds, size_t n_fds, struct fa_error *error)
{
	if (fds || !n_fds)
		return 0;
	return fa_fail(error, -EMFILE,
	               "the daemon has no descriptors left for the %zu that came with the message; "
	               "that may pass",
	               n_fds);
}

static int add_pieces(struct fa_session *session, struct fa_registered_buffer *buffer,
                      const uint64_t *piece_bytes, size_t n_piece_bytes, int *fds, size_t n_fds,
                      struct fa_error *error)
{
	uint64_t sum = buffer->pieces_bytes;
	int r;

	if (n_piece_bytes != n_fds)
		return fa_fail(error, -EINVAL,
		               "piece_bytes has %zu entries, and %zu descriptors came; expected as "
		               "many",
		               n_piece_bytes, n_fds);
	if (n_fds > buffer->n_pieces_wanted - buffer->n_pieces)
		return fa_fail(error, -EINVAL,
		               "%zu more pieces of buffer %" PRIu32 " came; expected %zu", n_fds,
		               buffer->id, buffer->n_pieces_wanted - buffer->n_pieces);
	for (size_t i = 0; i < n_fds; ++i) {
		if (!piece_bytes[i])
			return fa_fail(error, -EINVAL, "piece %zu has 0 bytes; expected at least 1",
			               buffer->n_pieces + i);
		if (__builtin_add_overflow(sum, piece_bytes[i], &sum))
			return fa_fail(error, -EINVAL,
			               "the pieces together are more than 64 bits can count");
	}
	/* These sizes are the client's; the device asks the driver. */
	if (buffer->n_pieces + n_fds == buffer->n_pieces_wanted &&
	    buffer->offset + buffer->bytes > sum)
		return fa_fail(error, -EINVAL,
		               "offset %" PRIu64 " and bytes %" PRIu64
		               " reach beyond the pieces, which have %" PRIu64 " bytes",
		               buffer->offset, buffer->bytes, sum);

	r = fa_charge_add(&buffer->charge_bytes, session->tenant, FA_RESOURCE_DEVICE_BYTES,
	                  sum - buffer->pieces_bytes, error);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n_fds; ++i)
		buffer->pieces[buffer->n_pieces++] = (struct fa_device_piece){
			.fd = fa_steal_fd(&fds[i]),
			.bytes = piece_bytes[i],
		};
	buffer->pieces_bytes = sum;
	return 0;
}

static void import(struct fa_session *session, struct fa_registered_buffer *buffer)
{
	session->import = buffer;
	fa_session_ref(session);
	fa_session_pause(session, FA_PAUSE_IMPORT);
	fa_importer_start(&session->context->importer, buffer);
}

static void on_closed(uv_handle_t *handle)
{
	free(handle->data);
}

/* Ends the wait for pieces. Returns the buffer with the registration's reference. */
static struct fa_registered_buffer *stop_waiting(struct fa_session *session)
{
	struct fa_registration *registration = fa_steal_ptr(session->registration);

	uv_close((uv_handle_t *)&registration->timer, on_closed);
	return fa_steal_ptr(registration->buffer);
}

static void on_deadline(uv_timer_t *timer)
{
	struct fa_registration *registration = timer->data;

	fa_registration_abort(registration->session, -ETIMEDOUT,
	                      "the time given to the request is over, and pieces are missing");
}

static int start_waiting(struct fa_session *session, struct fa_registered_buffer *buffer,
                         struct fa_error *error)
{
	uint64_t now = fa_now_ns(), deadline = buffer->deadline_ns;
	struct fa_registration *registration;

	registration = fa_new(struct fa_registration);
	if (!registration)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a registration");
	registration->session = session;
	registration->buffer = buffer;
	(void)uv_timer_init(session->context->loop, &registration->timer);
	registration->timer.data = registration;
	if (deadline != FA_NS_NEVER)
		uv_timer_start(&registration->timer, on_deadline,
		               deadline > now ? (deadline - now) / FA_NS_PER_MS + 1 : 0, 0);
	session->registration = registration;
	return 0;
}

void fa_registration_abort(struct fa_session *session, int status, const char *text)
{
	struct fa_registered_buffer *buffer;

	if (!session->registration)
		return;
	buffer = stop_waiting(session);
	if (session->state != FA_SESSION_CLOSING)
		fa_session_reply(session, buffer->message_id, status, text);
	fa_registered_buffer_unref(buffer);
}

int fa_registration_start(struct fa_session *session, const struct fa_wire_message *message,
                          int *fds, size_t n_fds, struct fa_error *error)
{
	const struct fa_wire_buffer_register *body = &message->buffer_register;
	struct fa_registered_buffer *buffer = NULL;
	int r;

	r = check_register(session, body, n_fds, error);
	if (r == 0)
		r = check_received(fds, n_fds, error);
	if (r < 0)
		return r;
	r = buffer_new(session, message, error, &buffer);
	if (r < 0)
		return r;
	r = charge(session, buffer, error);
	if (r == 0 && buffer->kind == FA_WIRE_BUFFER_CUDA_FD)
		r = add_pieces(session, buffer, body->piece_bytes, body->n_piece_bytes, fds, n_fds,
		               error);
	if (r == 0 && buffer->n_pieces < buffer->n_pieces_wanted) {
		r = start_waiting(session, buffer, error);
		if (r == 0)
			return 0;
	}
	if (r < 0) {
		fa_registered_buffer_unref(buffer);
		return r;
	}
	if (buffer->kind == FA_WIRE_BUFFER_HOST_FD)
		buffer->fd = fa_steal_fd(&fds[0]);
	import(session, buffer);
	return 0;
}

int fa_registration_pieces(struct fa_session *session, const struct fa_wire_message *message,
                           int *fds, size_t n_fds, struct fa_error *error)
{
	const struct fa_wire_buffer_pieces *body = &message->buffer_pieces;
	struct fa_registered_buffer *buffer;
	int r;

	if (!session->registration || session->registration->buffer->id != body->buffer)
		return fa_fail(error, -ENOENT, "buffer %" PRIu32 " waits for no pieces",
		               body->buffer);
	buffer = session->registration->buffer;
	if (!body->n_piece_bytes && !n_fds)
		r = fa_fail(error, -EINVAL, "no pieces came; expected at least 1");
	else
		r = check_received(fds, n_fds, error);
	if (r == 0)
		r = add_pieces(session, buffer, body->piece_bytes, body->n_piece_bytes, fds, n_fds,
		               error);
	if (r < 0) {
		fa_registration_abort(session, r, error->text);
		return r;
	}
	fa_session_reply(session, message->id, 0, NULL);
	/* If it is gone, a failed reply has closed the session. */
	if (!session->registration)
		return 0;
	if (buffer->n_pieces == buffer->n_pieces_wanted)
		import(session, stop_waiting(session));
	return 0;
}

int fa_registration_free(struct fa_session *session, const struct fa_wire_message *message,
                         struct fa_error *error)
{
	uint32_t id = message->buffer_free.buffer;
	struct fa_registered_buffer *buffer = fa_id_table_remove(&session->buffers, id);

	if (buffer) {
		session->buffer_bytes -= buffer->bytes;
		session->n_device_buffers -= is_on_device(session->context, buffer->kind);
		fa_registered_buffer_end(buffer);
	} else if (session->registration && session->registration->buffer->id == id) {
		fa_registration_abort(session, -ECANCELED,
		                      "the buffer was freed before all of its pieces had come");
	} else {
		return fa_fail(error, -ENOENT, "buffer %" PRIu32 " is not registered", id);
	}
	fa_session_reply(session, message->id, 0, NULL);
	return 0;
}

void fa_registration_imported(struct fa_registered_buffer *buffer)
{
	struct fa_session *session = buffer->owner;
	struct fa_wire_message reply;
	int fd = -1;

	session->import = NULL;
	buffer->owner = NULL;
	if (session->state != FA_SESSION_CLOSING && buffer->status == 0) {
		buffer->status = fa_id_table_add(&session->buffers, buffer->id, buffer);
		if (buffer->status < 0)
			fa_fail(&buffer->error, buffer->status,
			        "the daemon has no memory for the buffer's id");
	}
	if (session->state == FA_SESSION_CLOSING) {
		fa_registered_buffer_unref(buffer);
	} else if (buffer->status < 0) {
		fa_session_reply(session, buffer->message_id, buffer->status, buffer->error.text);
		fa_registered_buffer_unref(buffer);
	} else {
		session->buffer_bytes += buffer->bytes;
		session->n_device_buffers += is_on_device(session->context, buffer->kind);
		if (buffer->kind == FA_WIRE_BUFFER_ARENA)
			fd = fa_steal_fd(&buffer->fd);
		reply = (struct fa_wire_message){
			.id = buffer->message_id,
			.fds = fd >= 0,
			.type = FA_WIRE_BUFFER_REPLY,
			.buffer_reply = { .buffer = buffer->id,
			                  .bytes = buffer->bytes,
			                  .piece_bytes = buffer->piece_bytes },
		};
		fa_session_send(session, &reply, fd, &buffer->charge_fds);
	}
	fa_session_resume(session, FA_PAUSE_IMPORT);
	fa_context_drain_progress(session->context);
	fa_session_unref(session);
}
