#include "tests/fuzz/client.h"

#include "common/clock.h"
#include "common/packet.h"
#include "tests/fuzz/choose.h"
#include "tests/fuzz/host.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct world world;
struct kind_count counts[_FA_WIRE_TYPE_N];

void client_open(struct client *client, bool other)
{
	const unsigned int index = client->index;

	memset(client, 0, sizeof(*client));
	client->index = index;
	client->doorbell = client->wake = -1;
	client->other = other && host_has_users();
	client->fd = host_connect(other);
	client->streams[0] = true;
}

void client_close(struct client *client)
{
	if (client->fd < 0)
		return;
	model_close(client);
	if (client->page)
		munmap((void *)client->page, FA_COMPLETION_PAGE_BYTES);
	if (client->in)
		munmap(client->in, FA_TIMELINE_BYTES);
	if (client->ring_memory)
		munmap(client->ring_memory, FA_RING_HEAD_BYTES + client->ring.bytes);
	if (client->records)
		munmap((void *)client->records, client->results_bytes);
	if (client->doorbell >= 0)
		close(client->doorbell);
	if (client->wake >= 0)
		close(client->wake);
	close(client->fd);
	client->fd = -1;
}

/* ---- sending */

static bool is_of_stream(const struct fa_wire_message *message, bool by_ring, uint32_t *ret_stream,
                         uint64_t *ret_value, uint32_t *ret_n)
{
	*ret_n = 1;
	switch (message->type) {
#define STREAM(TAG, path)                                                                          \
	case FA_WIRE_##TAG:                                                                        \
		*ret_stream = message->path.stream;                                                \
		*ret_value = message->path.value;                                                  \
		return true;
		STREAM(ATTENTION, attention)
		STREAM(PAGES_ATTEND, pages_attend)
		STREAM(MARKER, marker)
		STREAM(SEQUENCE_COPY, sequence_copy)
		STREAM(SEQUENCE_PAGES, sequence_pages)
		STREAM(SEQUENCE_STATE, sequence_state)
		STREAM(STEP_ATTEND, step_attend)
		STREAM(STEP_END, step_end)
#undef STREAM
	case FA_WIRE_STEP_ATTEND_LAYERS:
		*ret_stream = message->step_attend_layers.attend.stream;
		*ret_value = message->step_attend_layers.attend.value;
		if (message->step_attend_layers.n_layers >= 1 &&
		    message->step_attend_layers.n_layers <= FA_WIRE_LAYERS_MAX)
			*ret_n = message->step_attend_layers.n_layers;
		return true;
	case FA_WIRE_STEP_BEGIN:
		*ret_stream = message->step_begin.stream;
		*ret_value = message->step_begin.value;
		return by_ring;
	default:
		return false;
	}
}

static void expect(struct client *client, const struct fa_wire_message *message, bool by_ring,
                   const struct step *step)
{
	struct pending *pending = &client->pending[client->n_pending++];

	*pending = (struct pending){ .message = *message, .by_ring = by_ring, .n = 1 };
	if (step)
		pending->step = *step;
	pending->of_stream = is_of_stream(message, by_ring, &pending->stream, &pending->value,
	                                  &pending->n);
	if (!pending->of_stream)
		return;
	pending->has_stream = pending->stream < FA_COMPLETION_SLOTS &&
	                      client->streams[pending->stream];
	if (pending->has_stream && pending->value == client->values[pending->stream] + 1)
		client->values[pending->stream] += pending->n;
}

static void count_sent(const struct fa_wire_message *message, bool by_ring)
{
	if ((unsigned int)message->type >= _FA_WIRE_TYPE_N)
		return;
	++counts[message->type].n_sent;
	counts[message->type].n_by_ring += by_ring;
}

/* The daemon must have read older packets before newer ring entries. */
static bool packets_are_read(struct client *client)
{
	int unread = 0;

	for (int i = 0; i < 100; ++i) {
		if (ioctl(client->fd, SIOCOUTQ, &unread) < 0 || !unread)
			return true;
		host_turn();
		client_read(client);
	}
	return false;
}

static bool put(struct client *client, const void *bytes, size_t length)
{
	if (fa_ring_put(&client->ring, bytes, length) < 0)
		return false;
	if (fa_ring_needs_doorbell(&client->ring) || once_in(16))
		(void)eventfd_write(client->doorbell, 1);
	return true;
}

static bool send_packet(struct client *client, const void *bytes, size_t length, const int *fds,
                        size_t n_fds)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(FDS * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)bytes, .iov_len = length };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n_fds) {
		struct cmsghdr *cmsg;

		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	return sendmsg(client->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

/* Changes bytes. Returns false if another id or a Drain came out, whose answers nobody expects. */
static bool mangle_bytes(unsigned char *bytes, size_t length, struct fa_wire_message *message,
                         bool *ret_known)
{
	static _Alignas(8) unsigned char copy[FA_WIRE_BYTES_MAX];
	struct fa_wire_message changed = { .type = FA_WIRE_NONE };
	int r;

	for (uint32_t n = 1 + pick(4); n; --n)
		bytes[pick((uint32_t)length)] = (uint8_t)pick(256);
	memcpy(copy, bytes, length);
	r = fa_wire_decode(copy, length, &changed);
	*ret_known = r == 0;
	if (r == -ENOSYS ||
	    (r == 0 && (changed.id != message->id || changed.type == FA_WIRE_DRAIN ||
	                changed.type != message->type)))
		return false;
	if (r == 0)
		*message = changed;
	return true;
}

void client_send(struct client *client, struct fa_wire_message *message, const int *fds,
                 size_t n_fds, bool by_ring, bool mangle, const struct step *step)
{
	static _Alignas(8) unsigned char space[FA_WIRE_BYTES_MAX + 64], encoded[FA_WIRE_BYTES_MAX];
	const void *bytes;
	bool known = true;
	size_t length;

	message->id = ++client->next_id;
	by_ring = by_ring && client->ring_memory && !n_fds &&
	          (packets_are_read(client) || once_in(64));
	if (client->fd < 0 || client->n_pending == PENDING ||
	    fa_wire_encode(message, space, sizeof(space) / 8 * 8, &bytes, &length) < 0)
		goto close;
	memcpy(encoded, bytes, length);
	if (mangle && !mangle_bytes(encoded, length, message, &known))
		goto close;
	if (by_ring ? put(client, encoded, length)
	            : send_packet(client, encoded, length, fds, n_fds)) {
		count_sent(message, by_ring);
		if (known)
			expect(client, message, by_ring, step);
	}
close:
	for (size_t i = 0; i < n_fds; ++i)
		close(fds[i]);
}

void client_forge_ring(struct client *client)
{
	_Atomic uint64_t *words[] = { &client->ring.words->tail, &client->ring.words->head };
	uint64_t at;

	client->forged = true;
	switch (pick(5)) {
	case 0:
		atomic_store(words[pick(2)], spoil_number(atomic_load(words[0])));
		break;
	case 1: /* an entry without a message, or with half of one */
		at = client->ring.tail & (client->ring.bytes - 1);
		client->ring.data[at] = (uint8_t)pick(256);
		client->ring.data[at + 4] = (uint8_t)pick(4);
		atomic_store(words[0], client->ring.tail + 8ull * pick(16));
		break;
	case 2: /* entries that were submitted change */
		for (int i = 0; i < 8; ++i) {
			at = client->ring.tail - 1 - pick(512);
			client->ring.data[at & (client->ring.bytes - 1)] = (uint8_t)pick(256);
		}
		break;
	case 3:
		atomic_store(&client->ring.words->armed, pick(3));
		atomic_store(&client->ring.words->full, pick(3));
		break;
	default:
		atomic_store(&client->ring.words->asleep, pick(3));
		break;
	}
	(void)eventfd_write(client->doorbell, 1);
}

/* ---- answers */

static void drop_pending(struct client *client, struct pending *pending)
{
	*pending = client->pending[--client->n_pending];
}

static void end_pending(struct client *client, struct pending *pending, int32_t status,
                        const struct fa_wire_message *answer, const int *fds)
{
	struct pending ended = *pending;

	drop_pending(client, pending);
	++counts[ended.message.type].n_answered;
	if (status < 0) {
		model_failed(client, &ended);
		return;
	}
	++counts[ended.message.type].n_succeeded;
	model_answered(client, &ended, answer, fds);
}

static struct pending *find_pending(struct client *client, uint64_t id)
{
	for (unsigned int i = 0; i < client->n_pending; ++i)
		if (client->pending[i].message.id == id)
			return &client->pending[i];
	return NULL;
}

bool client_awaits(const struct client *client, uint64_t id)
{
	return find_pending((struct client *)client, id) != NULL;
}

/* Demands @condition, unless entries of the client's ring have changed: then it asks. */
static bool is_right(const struct client *client, bool condition, const char *what)
{
	if (!client->forged)
		host_demand(condition, what);
	return condition;
}

static void take_completion(struct client *client, const struct fa_wire_message *message)
{
	const struct fa_wire_completion *completion = &message->completion;
	struct pending *pending = find_pending(client, message->id);

	host_demand(completion->status >= 0 || completion->text.length, "a failure has no text");
	if (!is_right(client, pending || client->loose,
	              "a Completion has no request, or came twice") ||
	    !pending)
		return;
	if (!is_right(client, pending->of_stream && pending->stream == completion->stream,
	              "a Completion is of another stream") ||
	    !is_right(client,
	              completion->value >= pending->value &&
	                      completion->value - pending->value < pending->n,
	              "a Completion has another value") ||
	    !is_right(client, !pending->by_ring || completion->status < 0,
	              "a Completion came for success by the ring") ||
	    !is_right(client, pending->n_answers < pending->n, "a Completion came twice"))
		return;
	++pending->n_answers;
	if (completion->status < 0)
		pending->status = completion->status;
	if (pending->n_answers == pending->n && (!pending->by_ring || !pending->has_stream))
		end_pending(client, pending, pending->status, NULL, NULL);
}

static enum fa_wire_type answer_type(enum fa_wire_type type)
{
	switch (type) {
	case FA_WIRE_HELLO:
		return FA_WIRE_HELLO_REPLY;
	case FA_WIRE_BUFFER_REGISTER:
		return FA_WIRE_BUFFER_REPLY;
	case FA_WIRE_STATUS:
		return FA_WIRE_STATUS_REPLY;
	case FA_WIRE_CACHE_CREATE:
	case FA_WIRE_CACHE_FIND:
		return FA_WIRE_CACHE_REPLY;
	case FA_WIRE_STEP_BEGIN:
		return FA_WIRE_STEP_REPLY;
	case FA_WIRE_RING_SETUP:
		return FA_WIRE_RING_REPLY;
	case FA_WIRE_TIMELINE_SETUP:
		return FA_WIRE_TIMELINE_REPLY;
	case FA_WIRE_PREFIX_FIND:
		return FA_WIRE_PREFIX_REPLY;
	case FA_WIRE_SEQUENCE_FREE:
		return FA_WIRE_REPLY;
	default:
		return type >= FA_WIRE_SEQUENCE_CREATE && type <= FA_WIRE_SEQUENCE_ATTACH
		               ? FA_WIRE_SEQUENCE_REPLY
		               : FA_WIRE_REPLY;
	}
}

/* Returns false if the connection ends. */
static bool take_answer(struct client *client, const struct fa_wire_message *message,
                        const int *fds)
{
	const bool failed = message->type == FA_WIRE_REPLY && message->reply.status < 0;
	struct pending *pending;

	if (message->type == FA_WIRE_COMPLETION) {
		take_completion(client, message);
		return true;
	}
	if (message->type == FA_WIRE_REPLY)
		host_demand(message->reply.status >= 0 ? !message->reply.text.length
		                                       : message->reply.text.length != 0,
		            "an error has no text, or a success has one");
	if (failed && (message->reply.status == -EPROTO ||
	               message->reply.status == -EPROTONOSUPPORT || !message->id))
		return false;
	pending = find_pending(client, message->id);
	if (is_right(client, pending != NULL, "an answer has no request, or came twice") &&
	    is_right(client,
	             failed || (!pending->of_stream &&
	                        message->type == answer_type(pending->message.type)),
	             "an answer is of another type"))
		end_pending(client, pending, failed ? message->reply.status : 0, message, fds);
	return true;
}

static void read_records(struct client *client)
{
	for (unsigned int i = 0; i < client->n_pending;) {
		struct pending *pending = &client->pending[i];
		uint32_t n_failed = 0;
		int32_t status = 0;

		++i;
		if (!pending->by_ring || !pending->has_stream ||
		    atomic_load(&client->page[pending->stream].completed) <
		            pending->value + pending->n - 1)
			continue;
		for (uint32_t j = 0; j < pending->n; ++j) {
			const uint64_t value = pending->value + j;
			struct fa_outcome outcome;

			if (!fa_record_read(&client->records[fa_record_index(
						    pending->stream, client->n_records, value)],
			                    value, &outcome)) {
				client->loose = true;
				continue;
			}
			n_failed += outcome.status < 0;
			if (outcome.status < 0)
				status = outcome.status;
		}
		(void)is_right(client, client->loose || pending->n_answers <= n_failed,
		               "a Completion came for success by the ring");
		/* The Completions of failures follow, by the socket. */
		if (pending->n_answers < n_failed)
			continue;
		end_pending(client, pending, status, NULL, NULL);
		i = 0;
	}
}

void client_read(struct client *client)
{
	static _Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];

	while (client->fd >= 0) {
		struct fa_wire_message message;
		int fds[FA_PACKET_FDS_MAX];
		size_t n_fds = 0;
		bool lives;
		ssize_t n;

		n = fa_packet_receive(client->fd, bytes, sizeof(bytes), fds, &n_fds, MSG_DONTWAIT);
		if (n == -EAGAIN)
			break;
		if (n <= 0) {
			client_close(client);
			return;
		}
		host_demand(fa_wire_decode(bytes, (size_t)n, &message) == 0,
		            "an answer is not valid");
		host_demand(message.type >= FA_WIRE_REPLY, "an answer is a request");
		host_demand(message.fds == n_fds, "an answer announces other descriptors");
		lives = take_answer(client, &message, fds);
		fa_packet_close_fds(fds, n_fds);
		if (!lives) {
			client_close(client);
			return;
		}
	}
	if (client->fd >= 0 && client->page)
		read_records(client);
}

bool client_settle(struct client *client, uint64_t patience_ns)
{
	const uint64_t deadline = fa_deadline_ns(patience_ns);

	for (;;) {
		client_read(client);
		if (client->fd < 0 || !client->n_pending)
			return true;
		if (fa_now_ns() > deadline)
			return false;
		host_wait();
	}
}

void client_cancel(struct client *client)
{
	/* Cancels are appended to the same list. */
	for (unsigned int i = 0, n = client->n_pending; i < n; ++i) {
		const struct pending *pending = &client->pending[i];
		struct fa_wire_message message = { .type = FA_WIRE_CANCEL };

		message.cancel.stream = pending->stream;
		message.cancel.value = pending->value;
		for (uint32_t j = 0; pending->of_stream && pending->has_stream && j < pending->n;
		     ++j, ++message.cancel.value)
			client_send(client, &message, NULL, 0, false, false, NULL);
	}
}

void client_finish(struct client *client)
{
	client_read(client);
	if (client->fd < 0)
		return;
	for (int i = 0; client->in && i < FA_TIMELINE_SLOTS; ++i)
		atomic_fetch_add(&client->in[i].value, 1ull << 20);
	if (client->ring_memory)
		(void)eventfd_write(client->doorbell, 1);
	/* End the registrations that wait for more pieces. */
	for (unsigned int i = client->n_pending; i--;) {
		const struct pending *pending = &client->pending[i];
		struct fa_wire_message message = { .type = FA_WIRE_BUFFER_FREE };

		message.buffer_free.buffer = pending->message.buffer_register.buffer;
		if (pending->message.type == FA_WIRE_BUFFER_REGISTER)
			client_send(client, &message, NULL, 0, false, false, NULL);
	}
	if (client_settle(client, 20 * FA_NS_PER_MS))
		return;
	/* Some requests wait for a value that never comes. */
	client_cancel(client);
	if (client->forged || client_settle(client, 10 * FA_NS_PER_SEC))
		return;
	for (unsigned int i = 0; i < client->n_pending; ++i)
		fprintf(stderr, "client %u: %s %lu of stream %u, value %lu, by_ring %d\n",
		        client->index, fa_wire_type_name(client->pending[i].message.type),
		        client->pending[i].message.id, client->pending[i].stream,
		        client->pending[i].value, client->pending[i].by_ring);
	host_demand(false, "a message was not answered");
}
