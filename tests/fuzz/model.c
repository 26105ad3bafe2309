/* Applies answers to the model of clients and of the pool. */
#include "tests/fuzz/client.h"
#include "tests/fuzz/host.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct cache *find_cache(uint64_t id)
{
	for (int i = 0; i < CACHES; ++i)
		if (id && world.caches[i].id == id)
			return &world.caches[i];
	return NULL;
}

struct sequence *find_sequence(uint64_t id)
{
	for (int i = 0; i < SEQUENCES; ++i)
		if (id && world.sequences[i].id == id)
			return &world.sequences[i];
	return NULL;
}

static void add_cache(struct client *client, const struct fa_wire_cache_reply *reply, uint32_t name)
{
	struct cache *cache = find_cache(reply->cache);

	for (int i = 0; i < CACHES && !cache; ++i)
		if (!world.caches[i].id)
			cache = &world.caches[i];
	if (!cache || cache->id)
		return;
	*cache = (struct cache){
		.id = reply->cache,
		.owner = client->index,
		.other = client->other,
		.name = name,
		.flags = reply->flags,
		.layers = reply->layers,
		.kv_heads = reply->kv_heads,
		.head_dim = reply->head_dim,
		.head_dim_v = reply->head_dim_v,
		.dtype = reply->dtype,
		.states = reply->states,
	};
}

static void remove_cache(uint64_t id)
{
	struct cache *cache = find_cache(id);

	for (int i = 0; i < SEQUENCES; ++i)
		if (world.sequences[i].cache == id)
			world.sequences[i].id = 0;
	if (cache)
		cache->id = 0;
	world.dead = id;
}

static void set_sequence(struct client *client, const struct fa_wire_sequence_reply *reply)
{
	struct sequence *sequence = find_sequence(reply->sequence);

	for (int i = 0; i < SEQUENCES && !sequence; ++i)
		if (!world.sequences[i].id) {
			sequence = &world.sequences[i];
			*sequence = (struct sequence){ .id = reply->sequence,
				                       .cache = reply->cache,
				                       .owner = client->index,
				                       .other = client->other };
		}
	if (!sequence)
		return;
	sequence->first = reply->first;
	sequence->length = reply->length;
}

static void end_step(const struct pending *pending, bool committed)
{
	const struct step *step = &pending->step;

	for (uint32_t i = 0; i < step->n_items; ++i) {
		struct sequence *sequence = find_sequence(step->items[i].sequence);

		if (!sequence)
			continue;
		sequence->n_steps -= sequence->n_steps != 0;
		if (committed)
			sequence->length += step->items[i].kept;
	}
}

static void begin_step(struct client *client, const struct pending *pending)
{
	for (int i = 0; i < STEPS; ++i) {
		if (client->steps[i].id)
			continue;
		client->steps[i] = pending->step;
		client->steps[i].id = pending->message.step_begin.step;
		for (uint32_t j = 0; j < pending->step.n_items; ++j) {
			struct sequence *sequence = find_sequence(pending->step.items[j].sequence);

			if (sequence)
				++sequence->n_steps;
		}
		return;
	}
}

static void *map(int fd, uint64_t bytes, int protection)
{
	void *memory = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);

	host_demand(memory != MAP_FAILED, "a descriptor of an answer cannot be mapped");
	return memory;
}

static void set_ring(struct client *client, const struct fa_wire_ring_reply *reply, const int *fds)
{
	client->ring_memory = map(fds[0], FA_RING_HEAD_BYTES + reply->bytes,
	                          PROT_READ | PROT_WRITE);
	client->n_records = reply->records;
	client->results_bytes = reply->results_bytes;
	client->records = map(fds[1], reply->results_bytes, PROT_READ);
	client->doorbell = fcntl(fds[2], F_DUPFD_CLOEXEC, 0);
	client->wake = fcntl(fds[3], F_DUPFD_CLOEXEC, 0);
	fa_ring_producer_init(&client->ring, client->ring_memory, reply->bytes);
}

static void set_buffer(struct client *client, const struct fa_wire_buffer_register *message)
{
	if (message->kind == FA_WIRE_BUFFER_CUDA_FD)
		client->registering = client->n_pieces = 0;
	for (int i = 0; i < BUFFERS; ++i)
		if (!client->buffers[i].id) {
			client->buffers[i] = (struct buffer){
				.id = message->buffer,
				.bytes = message->bytes,
				.read_only = message->flags & FA_WIRE_BUFFER_READ_ONLY,
				.host = message->kind <= FA_WIRE_BUFFER_ARENA,
			};
			return;
		}
}

static void free_buffer(struct client *client, uint32_t id)
{
	if (client->registering == id)
		client->registering = client->n_pieces = 0;
	for (int i = 0; i < BUFFERS; ++i)
		if (client->buffers[i].id == id)
			client->buffers[i].id = 0;
}

void model_answered(struct client *client, const struct pending *pending,
                    const struct fa_wire_message *answer, const int *fds)
{
	const struct fa_wire_message *message = &pending->message;
	struct sequence *sequence;

	switch (message->type) {
	case FA_WIRE_HELLO:
		client->ready = true;
		client->secret = answer->hello_reply.secret;
		client->generation = answer->hello_reply.generation;
		client->page = map(fds[0], FA_COMPLETION_PAGE_BYTES, PROT_READ);
		break;
	case FA_WIRE_BUFFER_REGISTER:
		set_buffer(client, &message->buffer_register);
		break;
	case FA_WIRE_BUFFER_FREE:
		free_buffer(client, message->buffer_free.buffer);
		break;
	case FA_WIRE_STREAM_CREATE:
		client->streams[message->stream_create.stream] = true;
		break;
	case FA_WIRE_STREAM_FREE:
		client->streams[message->stream_free.stream] = false;
		break;
	case FA_WIRE_CACHE_CREATE:
		add_cache(client, &answer->cache_reply, pending->step.id);
		break;
	case FA_WIRE_CACHE_FIND:
		add_cache(client, &answer->cache_reply, 0);
		break;
	case FA_WIRE_CACHE_REMOVE:
		remove_cache(message->cache_remove.cache);
		break;
	case FA_WIRE_SEQUENCE_FREE:
		sequence = find_sequence(message->sequence_free.sequence);
		world.dead = message->sequence_free.sequence;
		if (sequence)
			sequence->id = 0;
		break;
	case FA_WIRE_SEQUENCE_SET_NAME:
		set_sequence(client, &answer->sequence_reply);
		sequence = find_sequence(message->sequence_set_name.sequence);
		if (sequence)
			sequence->name = pending->step.id;
		break;
	case FA_WIRE_STEP_BEGIN:
		begin_step(client, pending);
		break;
	case FA_WIRE_STEP_END:
		end_step(pending, message->step_end.flags & FA_WIRE_STEP_COMMIT);
		break;
	case FA_WIRE_RING_SETUP:
		set_ring(client, &answer->ring_reply, fds);
		break;
	case FA_WIRE_TIMELINE_SETUP:
		client->in = map(fds[0], FA_TIMELINE_BYTES, PROT_READ | PROT_WRITE);
		break;
	default:
		if (answer && answer->type == FA_WIRE_SEQUENCE_REPLY)
			set_sequence(client, &answer->sequence_reply);
		break;
	}
}

void model_failed(struct client *client, const struct pending *pending)
{
	const struct fa_wire_message *message = &pending->message;

	if (message->type == FA_WIRE_STEP_END)
		end_step(pending, false);
	if (message->type == FA_WIRE_BUFFER_REGISTER &&
	    message->buffer_register.buffer == client->registering)
		client->registering = client->n_pieces = 0;
}

void model_close(struct client *client)
{
	for (int i = 0; i < STEPS; ++i)
		if (client->steps[i].id) {
			const struct pending pending = { .step = client->steps[i] };

			end_step(&pending, false);
		}
	for (int i = 0; i < SEQUENCES; ++i) {
		struct sequence *sequence = &world.sequences[i];

		if (sequence->owner == client->index && !sequence->name)
			sequence->id = 0;
	}
	for (int i = 0; i < CACHES; ++i)
		if (world.caches[i].owner == client->index && !world.caches[i].name)
			remove_cache(world.caches[i].id);
}
