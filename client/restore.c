/*
 * On the connecting thread.
 */
#include "client/restore.h"

#include "client/cuda_memory.h"
#include "client/poll_until.h"
#include "client/registration.h"

#include "common/packet.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

/* Messages in flight, because the kernel bounds the descriptors in sockets. */
#define RESTORE_DEPTH 64

/* Registrations in use come first, then streams. CUDA memory that cannot be exported again (freed,
 * or of another device) does not end the connection: its registration keeps the reason. */
struct restore {
	struct fa_client *client;
	struct fa_connection *connection;
	struct fa_list *next; /* of client.registrations, then of .cuda_used */
	size_t pieces;        /* of this registration, that were sent */
	uint32_t next_stream;
	uint64_t sent, answered;
	bool too_many_fds; /* sockets of this user hold too many */
	struct fa_error *error;

	/* The next message, which is made but not sent. */
	bool made;
	struct fa_wire_message message;
	int fds[FA_WIRE_FDS_MAX]; /* a single one is borrowed, others owned */
	size_t n_fds;
	bool owns_fds;
};

static void restore_clear(struct restore *restore)
{
	if (restore->owns_fds)
		fa_packet_close_fds(restore->fds, restore->n_fds);
	restore->n_fds = 0;
	restore->owns_fds = false;
	restore->made = false;
}

static void set_missing(struct fa_client_registration *registration, int code, const char *text)
{
	if (registration->missing)
		return;
	registration->missing = fa_fail(&registration->missing_error, code, "%s", text);
}

static bool is_same_device(const struct restore *restore,
                           struct fa_client_registration *registration)
{
	const struct fa_connection *connection = restore->connection;
	struct fa_error why;

	if (!strcmp(connection->backend, "cuda") &&
	    !memcmp(connection->device_uuid, registration->uuid, sizeof(registration->uuid)))
		return true;
	(void)fa_fail(&why, -ESTALE,
	              "it is memory of a GPU, and the daemon that answers now has backend %s, "
	              "device %s",
	              connection->backend, connection->device_name);
	set_missing(registration, -ESTALE, why.text);
	return false;
}

/* With the first or next pieces; false: none is left. */
static bool make_cuda(struct restore *restore, struct fa_client_registration *registration)
{
	const struct fa_cuda_allocations *memory = registration->cuda;
	struct fa_wire_message *message = &restore->message;
	size_t n = memory->n_pieces - restore->pieces;
	const struct fa_cudriver *driver;
	uint64_t *piece_bytes;
	struct fa_error error;
	int r;

	/* The daemon refused an earlier piece. */
	if (registration->missing)
		return false;
	r = fa_cuda_open(&error, &driver);
	if (r == 0 && memory->has_ids && !fa_cuda_is_alive(driver, memory))
		r = fa_fail(&error, -ESTALE, "its memory was freed");
	fa_registration_message(registration, message);
	if (r == 0 && !memory->by_ipc_handle) {
		n = n < FA_WIRE_FDS_MAX ? n : FA_WIRE_FDS_MAX;
		r = fa_cuda_export(driver, memory, restore->pieces, n, &error, restore->fds);
	}
	if (r < 0) {
		set_missing(registration, -ESTALE, error.text);
		if (!restore->pieces)
			return false;
		/* Ends the registration: the daemon still waits for its other pieces. */
		*message = (struct fa_wire_message){ .type = FA_WIRE_BUFFER_FREE,
			                             .buffer_free.buffer = registration->id };
		return true;
	}
	if (memory->by_ipc_handle)
		return true;

	restore->n_fds = n;
	restore->owns_fds = true;
	if (!restore->pieces) {
		message->buffer_register.n_pieces = (uint32_t)memory->n_pieces;
		message->buffer_register.n_piece_bytes = n;
		piece_bytes = message->buffer_register.piece_bytes;
	} else {
		*message = (struct fa_wire_message){ .type = FA_WIRE_BUFFER_PIECES };
		message->buffer_pieces.buffer = registration->id;
		message->buffer_pieces.n_piece_bytes = n;
		piece_bytes = message->buffer_pieces.piece_bytes;
	}
	for (size_t i = 0; i < n; ++i)
		piece_bytes[i] = memory->pieces[restore->pieces + i].bytes;
	return true;
}

static bool make_registration(struct restore *restore, struct fa_client_registration *registration)
{
	bool device = registration->cuda || registration->piece_bytes;

	if (device && !is_same_device(restore, registration))
		return false;
	if (registration->cuda)
		return make_cuda(restore, registration);
	/* This also covers memory that an earlier daemon made. */
	fa_registration_message(registration, &restore->message);
	restore->fds[0] = registration->fd;
	restore->n_fds = 1;
	return true;
}

static void next_registration(struct restore *restore)
{
	restore->next = restore->next->next;
	restore->pieces = 0;
}

static struct fa_client_registration *due_registration(struct restore *restore)
{
	struct fa_client *client = restore->client;

	if (restore->next == &client->registrations)
		restore->next = client->cuda_used.next;
	return restore->next == &client->cuda_used
	               ? NULL
	               : fa_container_of(restore->next, struct fa_client_registration, link);
}

/* False: none is left. The upper half of the message's id names the registration. */
static bool restore_make(struct restore *restore)
{
	struct fa_client *client = restore->client;
	struct fa_client_registration *registration;
	uint64_t tag = 0;

	if (restore->made)
		return true;
	while ((registration = due_registration(restore))) {
		tag = (uint64_t)registration->id << 32;
		if (make_registration(restore, registration))
			goto made;
		next_registration(restore);
	}
	tag = 0;
	for (; restore->next_stream < FA_COMPLETION_SLOTS; ++restore->next_stream) {
		const struct fa_client_stream *stream = &client->streams[restore->next_stream];

		if (restore->next_stream && stream->state == FA_STREAM_OPEN) {
			restore->message = (struct fa_wire_message){
				.type = FA_WIRE_STREAM_CREATE,
				.stream_create = { .stream = restore->next_stream,
				                   .priority = (int8_t)stream->priority },
			};
			goto made;
		}
	}
	return false;
made:
	restore->message.id = tag | (restore->sent + 1);
	restore->message.fds = (uint8_t)restore->n_fds;
	restore->made = true;
	return true;
}

static void restore_advance(struct restore *restore)
{
	struct fa_client_registration *registration = due_registration(restore);

	++restore->sent;
	if (!registration) {
		++restore->next_stream;
	} else {
		restore->pieces += restore->n_fds;
		if (!registration->cuda || registration->cuda->by_ipc_handle ||
		    restore->message.type == FA_WIRE_BUFFER_FREE ||
		    restore->pieces == registration->cuda->n_pieces)
			next_registration(restore);
	}
	restore_clear(restore);
}

/* Sends until the socket is full, enough are in flight, or all are sent. */
static int restore_send(struct restore *restore, bool *ret_full)
{
	uint64_t depth = RESTORE_DEPTH;
	const void *bytes;
	size_t length;
	int r;

	*ret_full = false;
	restore->too_many_fds = false;
	while (restore_make(restore)) {
		if (restore->n_fds > 1)
			depth = RESTORE_DEPTH / FA_WIRE_FDS_MAX;
		if (restore->sent - restore->answered >= depth)
			return 0;
		r = fa_wire_encode(&restore->message, restore->client->out, FA_WIRE_BYTES_MAX,
		                   &bytes, &length);
		if (r < 0)
			return fa_fail(restore->error, r, "cannot encode a registration");
		r = fa_packet_send(restore->connection->socket, bytes, length, restore->fds,
		                   restore->n_fds, MSG_DONTWAIT);
		if (r == -EAGAIN) {
			*ret_full = true;
			return 0;
		}
		if (r == -ETOOMANYREFS) {
			restore->too_many_fds = true;
			return 0;
		}
		/* Reading tells if the daemon is gone. */
		if (r == -EPIPE || r == -ECONNRESET)
			return 0;
		if (r < 0)
			return fa_fail(restore->error, r, "cannot register a buffer again: %s",
			               strerror(-r));
		restore_advance(restore);
	}
	return 0;
}

static struct fa_client_registration *find_registration(const struct fa_list *registrations,
                                                        uint64_t id)
{
	struct fa_list *pos;

	fa_list_for_each(pos, registrations) {
		struct fa_client_registration *registration = fa_container_of(
			pos, struct fa_client_registration, link);

		if (registration->id == id >> 32)
			return registration;
	}
	return NULL;
}

/* The daemon may have descriptors again soon: -EDQUOT makes the caller retry. */
static int refusal(int status)
{
	return status == -EMFILE || status == -ENFILE ? -EDQUOT : status;
}

/* True if only GPU memory was refused: its registration is marked. */
static bool restore_refused(struct restore *restore, const struct fa_wire_message *message)
{
	const struct fa_wire_string *text = &message->reply.text;
	struct fa_client_registration *registration;
	struct fa_error why;

	/* These pass: the lost session may hold quota, and a stopping daemon may have a successor. */
	if (refusal(message->reply.status) == -EDQUOT || message->reply.status == -ESHUTDOWN ||
	    message->reply.status == -ENODEV)
		return false;
	registration = find_registration(&restore->client->registrations, message->id);
	if (!registration)
		registration = find_registration(&restore->client->cuda_used, message->id);
	if (!registration || registration->kind == FA_WIRE_BUFFER_HOST_FD)
		return false;
	(void)fa_fail(&why, message->reply.status, "%.*s", (int)text->length,
	              text->text ? text->text : "");
	set_missing(registration, -ESTALE, why.text);
	return true;
}

/* -EAGAIN: none is there. */
static int restore_receive(struct restore *restore)
{
	struct fa_wire_message message;
	int r, fds[FA_PACKET_FDS_MAX];
	size_t n_fds = 0;
	ssize_t n;

	n = fa_packet_receive(restore->connection->socket, restore->client->in, FA_WIRE_BYTES_MAX,
	                      fds, &n_fds, MSG_DONTWAIT);
	if (n == -EAGAIN)
		return -EAGAIN;
	fa_packet_close_fds(fds, n_fds);
	if (n <= 0)
		return fa_fail(restore->error, -ECONNRESET,
		               "the daemon went away while buffers were registered again");
	r = fa_wire_decode(restore->client->in, (size_t)n, &message);
	if (r < 0 || n_fds || (uint32_t)message.id > restore->sent ||
	    (message.type != FA_WIRE_REPLY && message.type != FA_WIRE_BUFFER_REPLY))
		return fa_fail(restore->error, -EPROTO,
		               "the daemon broke the protocol while buffers were registered again");
	if (message.type == FA_WIRE_REPLY && message.reply.status < 0 &&
	    !restore_refused(restore, &message))
		return fa_fail(restore->error, refusal(message.reply.status),
		               "the restarted daemon does not take a buffer or stream again: %.*s",
		               (int)message.reply.text.length,
		               message.reply.text.text ? message.reply.text.text : "");
	++restore->answered;
	return 0;
}

static void mark(struct fa_list *registrations, int missing)
{
	struct fa_list *pos;

	fa_list_for_each(pos, registrations)
		fa_container_of(pos, struct fa_client_registration, link)->missing = missing;
}

static int restore_run(struct restore *restore, uint64_t deadline_ns)
{
	bool full;
	int r;

	while (restore_make(restore) || restore->answered < restore->sent) {
		uint64_t until_ns = FA_NS_NEVER;

		r = restore_send(restore, &full);
		if (r < 0)
			return r;
		if (fa_now_ns() >= deadline_ns)
			return fa_fail(restore->error, -ETIMEDOUT,
			               "the daemon did not take all buffers in time");
		if (restore->too_many_fds)
			until_ns = fa_deadline_ns(FA_TOO_MANY_FDS_PAUSE_NS);
		if (restore->answered < restore->sent || full || restore->too_many_fds)
			(void)fa_poll(restore->connection->socket,
			              (short)(POLLIN | (full ? POLLOUT : 0)),
			              until_ns < deadline_ns ? until_ns : deadline_ns);
		do
			r = restore_receive(restore);
		while (r == 0 && restore->answered < restore->sent);
		if (r < 0 && r != -EAGAIN)
			return r;
	}
	return 0;
}

int fa_restore(struct fa_client *client, struct fa_connection *connection, uint64_t deadline_ns,
               struct fa_error *error)
{
	struct restore restore = { .client = client,
		                   .connection = connection,
		                   .next = client->registrations.next,
		                   .error = error };
	int r;

	mark(&client->registrations, 0);
	mark(&client->cuda_used, 0);
	/* No buffer uses these, so the next import drops them. */
	mark(&client->cuda_unused, -ESTALE);
	r = restore_run(&restore, deadline_ns);
	restore_clear(&restore);
	return r;
}
