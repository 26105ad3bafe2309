/*
 * Checks all input: a message that does not fit what was asked ends the connection with -EPROTO.
 */
#include "client/receive.h"

#include "client/loss.h"
#include "client/pending.h"
#include "client/results.h"
#include "common/cleanup.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* ---- records of the ring */

bool fa_client_collect(struct fa_client *client, uint32_t id)
{
	const struct fa_client_stream *stream = &client->streams[id];
	int r;

	r = fa_result_collect(client, id);
	if (r < 0)
		fa_client_lose(client, -EPROTO,
		               "the daemon has no record of request %llu of stream %u",
		               (unsigned long long)(stream->finished + 1 - stream->base), id);
	else if (r > 0)
		fa_client_notify(client);
	return r > 0;
}

bool fa_client_collect_all(struct fa_client *client)
{
	bool any = false;

	if (!client->connection.ring.memory)
		return false;
	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS && client->state == FA_CLIENT_CONNECTED; ++i)
		any = fa_client_collect(client, i) || any;
	return any;
}

/* ---- messages */

static struct fa_client_call *find_call(struct fa_client *client, uint64_t id)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &client->calls) {
		struct fa_client_call *call = fa_container_of(pos, struct fa_client_call, link);

		if (call->id == id && !call->done)
			return call;
	}
	return NULL;
}

static const char *text_of(const struct fa_wire_string *string)
{
	return string->text ? string->text : "";
}

static void handle_reply(struct fa_client *client, const struct fa_wire_message *message, int *fds,
                         size_t n_fds)
{
	const struct fa_wire_reply *reply = &message->reply;
	bool plain = message->type == FA_WIRE_REPLY;
	struct fa_client_call *call;

	/* The reason why the daemon is about to close the connection. */
	if (plain && !message->id && reply->status < 0) {
		fa_client_lose(client, reply->status == -EPROTO ? -EPROTO : -ECONNRESET,
		               "the daemon closed the connection: %.*s", (int)reply->text.length,
		               text_of(&reply->text));
		return;
	}
	if (message->id & FA_ID_DETACHED && plain && client->detached_replies) {
		--client->detached_replies;
		return;
	}

	call = find_call(client, message->id);
	if (!call) {
		fa_client_lose(client, -EPROTO, "the daemon answered a request that was not made");
		return;
	}
	if (plain && reply->status < 0) {
		call->status = fa_fail(&call->error, reply->status, "%.*s", (int)reply->text.length,
		                       text_of(&reply->text));
	} else if (message->type != call->expect || n_fds != call->expect_fds ||
	           (plain && reply->status)) {
		fa_client_lose(client, -EPROTO,
		               "the daemon gave a wrong answer: %s with %zu "
		               "descriptors",
		               fa_wire_type_name(message->type), n_fds);
		return;
	}
	switch (message->type) {
	case FA_WIRE_BUFFER_REPLY:
		call->bytes = message->buffer_reply.bytes;
		call->piece_bytes = message->buffer_reply.piece_bytes;
		break;
	case FA_WIRE_STATUS_REPLY:
		call->bytes = message->status_reply.bytes;
		break;
	case FA_WIRE_CACHE_REPLY:
		call->cache = message->cache_reply;
		break;
	case FA_WIRE_SEQUENCE_REPLY:
		call->sequence = message->sequence_reply;
		break;
	case FA_WIRE_PREFIX_REPLY:
		call->prefix = message->prefix_reply;
		break;
	case FA_WIRE_STEP_REPLY:
		call->step = message->step_reply;
		break;
	case FA_WIRE_RING_REPLY:
		call->ring = message->ring_reply;
		for (size_t i = 0; i < FA_WIRE_RING_FDS; ++i)
			call->ring_fds[i] = fa_steal_fd(&fds[i]);
		client->ring_setup_answered = true;
		break;
	case FA_WIRE_TIMELINE_REPLY:
		call->timeline = message->timeline_reply;
		call->fd = fa_steal_fd(&fds[0]);
		call->second_fd = fa_steal_fd(&fds[1]);
		break;
	default:
		break;
	}
	if (call->expect_fds == 1 && n_fds)
		call->fd = fa_steal_fd(&fds[0]);
	call->done = true;
}

static void handle_completion(struct fa_client *client, const struct fa_wire_message *message)
{
	const struct fa_wire_completion *completion = &message->completion;
	struct fa_client_stream *stream;
	bool succeeded;

	if (completion->stream >= FA_COMPLETION_SLOTS) {
		fa_client_lose(client, -EPROTO, "the daemon completed a request of stream %u",
		               completion->stream);
		return;
	}
	stream = &client->streams[completion->stream];
	/* Earlier requests that succeeded have no Completion of their own. */
	(void)fa_client_collect(client, completion->stream);
	if (client->state == FA_CLIENT_LOST)
		return;
	/* The connection was closed after this Completion, and records are gone. */
	if (client->connection.ring.memory && completion->status <= 0 &&
	    completion->value > stream->finished + 1 - stream->base &&
	    completion->value <= stream->submitted - stream->base &&
	    fa_result_probe(client, completion->stream, completion->value + stream->base, false)) {
		fa_client_lose(client, -ECONNRESET,
		               "the daemon ended the connection before its results were read");
		return;
	}
	if (stream->finished == stream->submitted ||
	    completion->value != stream->finished + 1 - stream->base || completion->status > 0) {
		fa_client_lose(client, -EPROTO,
		               "the daemon completed request %llu of stream %u out of turn",
		               (unsigned long long)completion->value, completion->stream);
		return;
	}
	/* A thread may have seen the success that the device signalled before. */
	succeeded = fa_completion_device_done(&client->connection.page[completion->stream],
	                                      completion->value);
	fa_result_store(stream, succeeded ? 0 : completion->status, completion->text.text,
	                completion->text.length, completion->queued_ns, completion->started_ns,
	                completion->finished_ns);
	--client->in_flight;
	fa_client_notify(client);
}

static bool is_reply(enum fa_wire_type type)
{
	return type == FA_WIRE_REPLY || type == FA_WIRE_BUFFER_REPLY ||
	       type == FA_WIRE_STATUS_REPLY || type == FA_WIRE_CACHE_REPLY ||
	       type == FA_WIRE_SEQUENCE_REPLY || type == FA_WIRE_STEP_REPLY ||
	       type == FA_WIRE_RING_REPLY || type == FA_WIRE_TIMELINE_REPLY ||
	       type == FA_WIRE_PREFIX_REPLY;
}

bool fa_client_handle_packet(struct fa_client *client, struct fa_client_packet *packet)
{
	struct fa_wire_message message;
	size_t n_fds = packet->n_fds;
	int r, *fds = packet->fds;
	ssize_t n = packet->n;

	if (n == -EAGAIN || n == -EINTR)
		return false;
	if (n == -EMSGSIZE || n == -E2BIG) {
		fa_client_lose(client, -EPROTO, "the daemon sent an impossible packet: %s",
		               strerror((int)-n));
		return false;
	}
	if (n == -EMFILE) {
		fa_client_lose(client, -ECONNRESET,
		               "the daemon sent descriptors, and this process can have no more");
		return false;
	}
	if (n <= 0) {
		fa_client_lose(client, -ECONNRESET, "the daemon went away%s%s", n ? ": " : "",
		               n ? strerror((int)-n) : "");
		return false;
	}

	r = fa_wire_decode(client->in, (size_t)n, &message);
	if (r < 0)
		fa_client_lose(client, -EPROTO, "the daemon sent a message that cannot be read");
	else if (message.fds != n_fds)
		fa_client_lose(client, -EPROTO, "the daemon announced %u descriptors and sent %zu",
		               message.fds, n_fds);
	else if (message.type == FA_WIRE_COMPLETION && !n_fds)
		handle_completion(client, &message);
	else if (is_reply(message.type))
		handle_reply(client, &message, fds, n_fds);
	else
		fa_client_lose(client, -EPROTO, "the daemon sent %s with %zu descriptors",
		               fa_wire_type_name(message.type), n_fds);
	fa_packet_close_fds(fds, n_fds);
	return true;
}

static bool receive_one(struct fa_client *client)
{
	struct fa_client_packet packet = { .n_fds = 0 };

	packet.n = fa_packet_receive(client->connection.socket, client->in, FA_WIRE_BYTES_MAX,
	                             packet.fds, &packet.n_fds, MSG_DONTWAIT);
	return fa_client_handle_packet(client, &packet);
}

static bool is_reply_due(const struct fa_client *client)
{
	struct fa_list *pos;

	if (client->in_flight || client->detached_replies)
		return true;
	fa_list_for_each(pos, &client->calls)
		if (!fa_container_of(pos, struct fa_client_call, link)->done)
			return true;
	return false;
}

/* ---- reading and waking */

void fa_client_wake(struct fa_client *client)
{
	struct fa_list *pos;

	/* Records behind the failure of this Completion can be read now. */
	(void)fa_client_collect_all(client);
	if (client->state != FA_CLIENT_CONNECTED)
		return;
	fa_list_for_each(pos, &client->waiters) {
		struct fa_client_waiter *waiter = fa_container_of(pos, struct fa_client_waiter,
		                                                  link);

		if (waiter->ready(client, waiter))
			pthread_cond_signal(&waiter->wake);
	}
	fa_list_for_each(pos, &client->spinning) {
		struct fa_client_waiter *waiter = fa_container_of(pos, struct fa_client_waiter,
		                                                  link);

		(void)waiter->ready(client, waiter);
	}
}

void fa_client_read_socket(struct fa_client *client, bool all, bool any)
{
	while (client->state == FA_CLIENT_CONNECTED && (all || is_reply_due(client)) &&
	       receive_one(client))
		any = true;
	/* fa_client_lose() has woken all. */
	if (any && client->state == FA_CLIENT_CONNECTED)
		fa_client_wake(client);
}

void fa_client_receive(struct fa_client *client, bool all)
{
	if (fa_client_collect_all(client))
		fa_client_wake(client);
	/* The leader's poll() would not return if another thread read what it waits for. */
	if (!client->leader)
		fa_client_read_socket(client, all, false);
}
