#include "client/results.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void fa_result_store(struct fa_client_stream *stream, int status, const char *text, size_t length,
                     uint64_t queued_ns, uint64_t started_ns, uint64_t finished_ns)
{
	struct fa_result *result = &stream->results[++stream->finished % FA_RESULTS];

	free(result->text);
	*result = (struct fa_result){ .status = status,
		                      .queued_ns = queued_ns,
		                      .started_ns = started_ns,
		                      .finished_ns = finished_ns };
	if (status < 0 && text)
		result->text = strndup(
			text, length < FA_ERROR_TEXT_BYTES ? length : FA_ERROR_TEXT_BYTES - 1);
}

int fa_result_probe(const struct fa_client *client, uint32_t stream, uint64_t value, bool early)
{
	const struct fa_completion_slot *slot = &client->connection.page[stream];
	uint64_t wire = value - client->streams[stream].base;

	if (atomic_load_explicit(&slot->completed, memory_order_acquire) < wire) {
		if (!early || !fa_completion_device_passed(slot, wire))
			return 0;
		/* Reads it again: this request may have failed before a later one was reported. */
		if (atomic_load_explicit(&slot->completed, memory_order_acquire) < wire)
			return 1;
	}
	/* After a later failure only the socket tells how this one ended. */
	return atomic_load_explicit(&slot->failed, memory_order_acquire) < wire ? 1 : -1;
}

static bool is_silent(const struct fa_client *client)
{
	char byte;

	return recv(client->connection.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
	       (errno == EAGAIN || errno == EINTR);
}

int fa_result_collect(struct fa_client *client, uint32_t id)
{
	const struct fa_client_ring *ring = &client->connection.ring;
	struct fa_client_stream *stream = &client->streams[id];
	uint64_t completed, before = stream->finished;
	struct fa_outcome outcome;

	if (!ring->memory || stream->finished == stream->submitted ||
	    stream->finished < stream->last_by_socket)
		return 0;
	completed = atomic_load_explicit(&client->connection.page[id].completed,
	                                 memory_order_acquire);
	while (stream->finished < stream->submitted &&
	       stream->finished + 1 - stream->base <= completed) {
		uint64_t wire = stream->finished + 1 - stream->base;

		/* There are at least as many records as requests in flight. They go with the
		 * connection; then results come by the socket. */
		if (!fa_record_read(&ring->records[fa_record_index(id, ring->n_records, wire)],
		                    wire, &outcome)) {
			if (is_silent(client))
				return -EPROTO;
			break;
		}
		/* A failed request's Completion has the error text. */
		if (outcome.status)
			break;
		fa_result_store(stream, 0, NULL, 0, outcome.queued_ns, outcome.started_ns,
		                outcome.finished_ns);
		stream->results[stream->finished % FA_RESULTS].number = outcome.number;
		--client->in_flight;
	}
	return stream->finished != before;
}
