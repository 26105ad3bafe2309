#include "client/call.h"
#include "client/cancel.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/reconnect.h"

#include <errno.h>

int fa_stream_new(struct fa_client *handle, int priority, uint32_t *ret_stream)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_STREAM_CREATE };
	struct fa_client_call call = { .expect = FA_WIRE_REPLY };
	struct fa_client_stream *stream = NULL;
	uint64_t limit;
	int r;

	if (!ret_stream)
		return fa_error_set(-EINVAL, "ret_stream is NULL");
	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	limit = client->connection.limits.streams < FA_COMPLETION_SLOTS
	                ? client->connection.limits.streams
	                : FA_COMPLETION_SLOTS;
	for (uint32_t i = 1; i < limit && !stream; ++i)
		if (client->streams[i].state == FA_STREAM_CLOSED) {
			stream = &client->streams[i];
			message.stream_create.stream = i;
		}
	if (!stream) {
		r = fa_error_set(-EDQUOT, "all %llu streams are in use", (unsigned long long)limit);
		goto leave;
	}

	stream->state = FA_STREAM_BUSY;
	stream->priority = priority > 0 ? 1 : 0;
	message.stream_create.priority = (int8_t)stream->priority;
	r = fa_call_run(client, &message, NULL, 0, true, &call);
	/* Another thread may have connected to a new daemon, which does not know this stream. */
	fa_client_await_connecting(client);
	if (r >= 0 && call.epoch != client->epoch)
		r = fa_client_lost_error(client);
	stream->state = r < 0 ? FA_STREAM_CLOSED : FA_STREAM_OPEN;
	if (r >= 0)
		*ret_stream = stream->number;
leave:
	fa_client_leave(client);
	return r;
}

int fa_stream_free(struct fa_client *handle, uint32_t number)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	const uint32_t id = number % FA_COMPLETION_SLOTS;
	struct fa_wire_message message = { .type = FA_WIRE_STREAM_FREE, .stream_free.stream = id };
	struct fa_client_call call = { .expect = FA_WIRE_REPLY };
	struct fa_client_stream *stream;
	uint32_t epoch;
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	fa_client_await_connecting(client);
	if (!number || client->streams[id].number != number ||
	    client->streams[id].state != FA_STREAM_OPEN) {
		r = fa_error_set(-ENOENT,
		                 number ? "there is no stream %u" : "stream %u is always there",
		                 number);
		goto leave;
	}

	stream = &client->streams[id];
	stream->state = FA_STREAM_BUSY;
	epoch = client->epoch;
	if (client->state == FA_CLIENT_CONNECTED)
		r = fa_call_run(client, &message, NULL, 0, false, &call);
	/* The stream ended with its connection. */
	fa_client_await_connecting(client);
	if (client->state == FA_CLIENT_LOST || client->epoch != epoch)
		r = 0;
	stream->state = r < 0 ? FA_STREAM_OPEN : FA_STREAM_CLOSED;
	if (r >= 0)
		stream->number += FA_COMPLETION_SLOTS;
leave:
	fa_client_leave(client);
	return r;
}
