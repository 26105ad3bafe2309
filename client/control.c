/* The other requests: streams, ping, status, drain. */
#include "client/internal.h"

#include "common/memfd.h"

#include <errno.h>

/* More is not the state of a daemon. */
#define STATUS_BYTES_MAX (64u << 20)

/* ---- streams */

int fa_stream_new(struct fa_client *client, int priority, uint32_t *ret_stream)
{
	struct fa_wire_message message = { .type = FA_WIRE_STREAM_CREATE };
	struct fa_call call = { .expect = FA_WIRE_REPLY };
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
	r = fa_io_call(client, &message, NULL, 0, true, &call);
	/* What another thread connected to meanwhile knows nothing of this stream. */
	fa_client_settle(client);
	if (r >= 0 && call.epoch != client->epoch)
		r = fa_client_lost_error(client);
	stream->state = r < 0 ? FA_STREAM_CLOSED : FA_STREAM_OPEN;
	if (r >= 0)
		*ret_stream = message.stream_create.stream;
leave:
	fa_client_leave(client);
	return r;
}

int fa_stream_free(struct fa_client *client, uint32_t id)
{
	struct fa_wire_message message = { .type = FA_WIRE_STREAM_FREE, .stream_free.stream = id };
	struct fa_call call = { .expect = FA_WIRE_REPLY };
	struct fa_client_stream *stream;
	uint32_t epoch;
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	fa_client_settle(client);
	if (!id || id >= FA_COMPLETION_SLOTS || client->streams[id].state != FA_STREAM_OPEN) {
		r = fa_error_set(-ENOENT,
		                 id ? "there is no stream %u" : "stream %u is always there", id);
		goto leave;
	}

	stream = &client->streams[id];
	stream->state = FA_STREAM_BUSY;
	epoch = client->epoch;
	if (client->state == FA_CLIENT_CONNECTED)
		r = fa_io_call(client, &message, NULL, 0, false, &call);
	/* With the connection went the stream. */
	fa_client_settle(client);
	if (client->state == FA_CLIENT_LOST || client->epoch != epoch)
		r = 0;
	stream->state = r < 0 ? FA_STREAM_OPEN : FA_STREAM_CLOSED;
leave:
	fa_client_leave(client);
	return r;
}

/* ---- the rest */

static int simple_call(struct fa_client *client, enum fa_wire_type type)
{
	struct fa_wire_message message = { .type = type };
	struct fa_call call = { .expect = FA_WIRE_REPLY };
	int r;

	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	r = fa_io_call(client, &message, NULL, 0, true, &call);
	fa_client_leave(client);
	return r;
}

int fa_ping(struct fa_client *client)
{
	return simple_call(client, FA_WIRE_PING);
}

int fa_drain(struct fa_client *client)
{
	return simple_call(client, FA_WIRE_DRAIN);
}

static int read_status(int fd, uint64_t bytes, char **ret_json)
{
	_fa_cleanup_(fa_freep) char *json = NULL;
	struct fa_error why;
	uint64_t size;
	int r, seals;

	r = fa_memfd_check(fd, 0, bytes, &why, &size, &seals);
	if (r < 0 || bytes > STATUS_BYTES_MAX)
		return fa_error_set(-EPROTO, "the daemon's status is unusable: %.180s",
		                    r < 0 ? why.text : "it is too long");
	json = malloc(bytes + 1);
	if (!json)
		return fa_error_set(-ENOMEM, "no memory for the status");
	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = pread(fd, json + at, bytes - at, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fa_error_set(n ? -errno : -EPROTO, "cannot read the status");
		at += (uint64_t)n;
	}
	json[bytes] = '\0';
	*ret_json = fa_steal_ptr(json);
	return 0;
}

void *fa_free(void *memory)
{
	free(memory);
	return NULL;
}

int fa_status(struct fa_client *client, char **ret_json)
{
	struct fa_wire_message message = { .type = FA_WIRE_STATUS };
	struct fa_call call = { .expect = FA_WIRE_STATUS_REPLY, .expect_fds = 1 };
	int r;

	if (!ret_json)
		return fa_error_set(-EINVAL, "ret_json is NULL");
	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	r = fa_io_call(client, &message, NULL, 0, true, &call);
	fa_client_leave(client);
	if (r >= 0)
		r = read_status(call.fd, call.bytes, ret_json);
	fa_close_fdp(&call.fd);
	return r;
}
