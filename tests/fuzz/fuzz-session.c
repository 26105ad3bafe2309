/*
 * Fuzzes the sessions of a whole daemon, which runs in this process. The input makes the choices:
 * clients of two users connect, send messages of all kinds by socket and ring, most of them valid,
 * spoil some, forge rings, and vanish. Every message must be answered once, with a text if it
 * failed; after each input nothing of the clients may be left (host.h).
 */
#include "tests/fuzz/session.h"

#include "common/clock.h"
#include "tests/fuzz/choose.h"
#include "tests/fuzz/compose.h"
#include "tests/fuzz/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Attention with more multiply-adds is not sent, as it only takes time. */
#define WORK_MAX 1e6
#define MESSAGES_MAX 400
/* Inputs between two checks of the pool's state, which take a while. */
#define CHECK_EVERY 16

static const enum fa_wire_type kinds[] = {
	FA_WIRE_PING,
	FA_WIRE_BUFFER_REGISTER,
	FA_WIRE_BUFFER_FREE,
	FA_WIRE_STREAM_CREATE,
	FA_WIRE_STREAM_FREE,
	FA_WIRE_ATTENTION,
	FA_WIRE_ATTENTION,
	FA_WIRE_PAGES_ATTEND,
	FA_WIRE_CANCEL,
	FA_WIRE_STATUS,
	FA_WIRE_BUFFER_PIECES,
	FA_WIRE_CACHE_CREATE,
	FA_WIRE_CACHE_FIND,
	FA_WIRE_CACHE_REMOVE,
	FA_WIRE_SEQUENCE_CREATE,
	FA_WIRE_SEQUENCE_FIND,
	FA_WIRE_SEQUENCE_FORK,
	FA_WIRE_SEQUENCE_SET_NAME,
	FA_WIRE_SEQUENCE_TRUNCATE,
	FA_WIRE_SEQUENCE_DROP,
	FA_WIRE_SEQUENCE_FREE,
	FA_WIRE_SEQUENCE_INFO,
	FA_WIRE_SEQUENCE_PUBLISH,
	FA_WIRE_SEQUENCE_ATTACH,
	FA_WIRE_PREFIX_FIND,
	FA_WIRE_SEQUENCE_COPY,
	FA_WIRE_SEQUENCE_PAGES,
	FA_WIRE_SEQUENCE_STATE,
	FA_WIRE_STEP_BEGIN,
	FA_WIRE_STEP_BEGIN,
	FA_WIRE_STEP_ATTEND,
	FA_WIRE_STEP_ATTEND,
	FA_WIRE_STEP_ATTEND,
	FA_WIRE_STEP_END,
	FA_WIRE_STEP_END,
	FA_WIRE_RING_SETUP,
	FA_WIRE_MARKER,
	FA_WIRE_TIMELINE_SETUP,
	FA_WIRE_STEP_ATTEND_LAYERS,
	FA_WIRE_STEP_ATTEND_LAYERS,
	FA_WIRE_DRAIN,
	FA_WIRE_HELLO,
};

int LLVMFuzzerInitialize(int *argc, char ***argv);

static uint64_t n_inputs;

static double work(const struct fa_wire_view *q, const struct fa_wire_view *k)
{
	double n = 1;

	for (unsigned int i = 0; i < FA_WIRE_RANK_MAX; ++i) {
		n *= q->shape[i] > 1 ? (double)q->shape[i] : 1;
		n *= k->shape[i] > 1 ? (double)k->shape[i] : 1;
	}
	return n;
}

/* Messages that would stop the daemon or only take time are not sent. */
static bool is_unwanted(const struct client *client, const struct fa_wire_message *message)
{
	if (message->type == FA_WIRE_ATTENTION)
		return work(&message->attention.q, &message->attention.k) > WORK_MAX;
	if (message->type == FA_WIRE_PAGES_ATTEND)
		return work(&message->pages_attend.q, &message->pages_attend.table) *
		               (double)message->pages_attend.k.shape[1] >
		       WORK_MAX;
	return message->type == FA_WIRE_DRAIN && !client->other;
}

static uint32_t *stream_of(struct fa_wire_message *message, uint64_t **ret_value)
{
	switch (message->type) {
#define STREAM(TAG, path)                                                                          \
	case FA_WIRE_##TAG:                                                                        \
		*ret_value = &message->path.value;                                                 \
		return &message->path.stream;
		STREAM(ATTENTION, attention)
		STREAM(PAGES_ATTEND, pages_attend)
		STREAM(MARKER, marker)
		STREAM(SEQUENCE_COPY, sequence_copy)
		STREAM(SEQUENCE_PAGES, sequence_pages)
		STREAM(SEQUENCE_STATE, sequence_state)
		STREAM(STEP_ATTEND, step_attend)
		STREAM(STEP_ATTEND_LAYERS, step_attend_layers.attend)
		STREAM(STEP_END, step_end)
		STREAM(STEP_BEGIN, step_begin)
#undef STREAM
	default:
		return NULL;
	}
}

/* Sets the next value of the request's stream. A wrong one ends the session. */
static void set_value(struct client *client, struct fa_wire_message *message, bool by_ring)
{
	uint64_t *value;
	uint32_t *stream = stream_of(message, &value);

	if (!stream || (message->type == FA_WIRE_STEP_BEGIN && !by_ring) || once_in(512))
		return;
	*value = *stream < FA_COMPLETION_SLOTS ? client->values[*stream] + 1 : 1;
}

/* Names a cache or sequence of any client, or one that is gone. */
static void take_id(struct fa_wire_message *message)
{
	const uint64_t sequence = once_in(3) ? world.dead : world.sequences[pick(SEQUENCES)].id;
	const uint64_t cache = once_in(3) ? world.dead : world.caches[pick(CACHES)].id;

	switch (message->type) {
#define TAKE(TAG, path, id)                                                                        \
	case FA_WIRE_##TAG:                                                                        \
		message->path = id;                                                                \
		break;
		TAKE(CACHE_FIND, cache_find.cache, cache)
		TAKE(SEQUENCE_CREATE, sequence_create.cache, cache)
		TAKE(SEQUENCE_FORK, sequence_fork.sequence, sequence)
		TAKE(SEQUENCE_SET_NAME, sequence_set_name.sequence, sequence)
		TAKE(SEQUENCE_TRUNCATE, sequence_truncate.sequence, sequence)
		TAKE(SEQUENCE_DROP, sequence_drop.sequence, sequence)
		TAKE(SEQUENCE_FREE, sequence_free.sequence, sequence)
		TAKE(SEQUENCE_INFO, sequence_info.sequence, sequence)
		TAKE(SEQUENCE_PUBLISH, sequence_publish.sequence, sequence)
		TAKE(SEQUENCE_ATTACH, sequence_attach.sequence, sequence)
		TAKE(PREFIX_FIND, prefix_find.cache, cache)
		TAKE(SEQUENCE_COPY, sequence_copy.sequence, sequence)
		TAKE(SEQUENCE_PAGES, sequence_pages.sequence, sequence)
		TAKE(STEP_ATTEND, step_attend.cache, cache)
#undef TAKE
	default:
		break;
	}
}

/* Makes the result overlap an input. */
static void alias(struct fa_wire_message *message)
{
	struct fa_wire_attention *attention = &message->attention;
	struct fa_wire_step_attend *attend = &message->step_attend;

	if (message->type == FA_WIRE_ATTENTION)
		attention->out.offset = attention->q.offset + 4 * pick(16);
	else if (message->type == FA_WIRE_STEP_ATTEND)
		attend->out.offset = pick(2) ? attend->k.offset : attend->v.offset;
}

static void add_wrong_fds(struct parcel *parcel)
{
	while (parcel->n_fds < FDS && !once_in(3)) {
		parcel->fds[parcel->n_fds] = dup(2);
		host_demand(parcel->fds[parcel->n_fds++] >= 0, "no descriptor");
	}
	if (!once_in(8))
		parcel->message.fds = (uint8_t)parcel->n_fds;
}

/* Reaches what gates wait for. */
static void advance(struct client *client)
{
	for (int i = 0; client->fd >= 0 && client->in && i < 8; ++i)
		atomic_fetch_add(&client->in[i].value, 1);
}

/* Runs the daemon until it has answered, or for a while. */
static void await(struct client *client, const struct fa_wire_message *message, bool waits)
{
	/* What is expected of requests depends on the streams that there are. */
	const bool is_stream = message->type == FA_WIRE_STREAM_CREATE ||
	                       message->type == FA_WIRE_STREAM_FREE;
	const uint64_t deadline = fa_deadline_ns((is_stream ? 100 : 30) * FA_NS_PER_MS);

	if (!is_stream && client->ready && !pick(4))
		return;
	host_turn();
	client_read(client);
	while (client->fd >= 0 && client_awaits(client, message->id) && (is_stream || !waits) &&
	       fa_now_ns() < deadline) {
		host_wait();
		client_read(client);
		advance(client);
	}
	if (!waits && client->fd >= 0 && client_awaits(client, message->id))
		client_cancel(client);
	if (is_stream && client->fd >= 0 && client_awaits(client, message->id)) {
		client_finish(client);
		/* The ring was forged. */
		if (client->fd >= 0 && client_awaits(client, message->id))
			client_close(client);
	}
}

static void send_one(struct client *client)
{
	const enum fa_wire_type type = client->ring_memory || pick(4)
	                                       ? kinds[pick(sizeof(kinds) / sizeof(*kinds))]
	                                       : FA_WIRE_RING_SETUP;
	uint64_t *value;
	struct parcel parcel = { .n_fds = 0 };
	bool mangle = false, waits = false, by_ring;

	compose(client, client->ready ? type : FA_WIRE_HELLO, &parcel);
	/* A second Hello ends the session. */
	if (client->ready && type == FA_WIRE_HELLO && !once_in(16))
		compose(client, FA_WIRE_PING, &parcel);
	/* The ring is for requests of streams. */
	by_ring = client->ring_memory &&
	          (stream_of(&parcel.message, &value) ? pick(3) != 0 : once_in(64));
	if (parcel.message.type == FA_WIRE_STEP_BEGIN && by_ring)
		parcel.message.step_begin.stream = parcel.step.stream;
	if (once_in(6)) {
		spoil_message(&parcel.message);
		waits = true;
	}
	if (once_in(16))
		take_id(&parcel.message);
	if (once_in(32))
		alias(&parcel.message);
	if (once_in(256))
		add_wrong_fds(&parcel);
	set_value(client, &parcel.message, by_ring);
	if (once_in(16))
		parcel.message.timeout_ns = 1000ull << pick(24);
	if (once_in(128))
		mangle = true;
	/* The request may wait for a gate, or for pieces. */
	waits = waits || parcel.message.n_waits ||
	        (parcel.message.type == FA_WIRE_BUFFER_REGISTER &&
	         parcel.message.buffer_register.kind == FA_WIRE_BUFFER_CUDA_FD);
	if (is_unwanted(client, &parcel.message) || client->n_pending > PENDING / 2) {
		for (size_t i = 0; i < parcel.n_fds; ++i)
			close(parcel.fds[i]);
		return;
	}
	client_send(client, &parcel.message, parcel.fds, parcel.n_fds, by_ring, mangle,
	            &parcel.step);
	await(client, &parcel.message, waits);
}

static void act(struct client *client)
{
	if (client->fd < 0) {
		client_open(client, client->index % 2);
		return;
	}
	switch (pick(24)) {
	case 0:
		advance(client);
		break;
	case 1:
		if (once_in(8))
			client_close(client);
		break;
	case 2:
		if (client->ring_memory && once_in(8))
			client_forge_ring(client);
		break;
	case 3:
		host_turn();
		break;
	default:
		send_one(client);
		break;
	}
	client_read(client);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
	choose_from(data, length);
	host_begin();
	memset(&world, 0, sizeof(world));
	for (unsigned int i = 0; i < CLIENTS; ++i) {
		world.clients[i].index = i;
		world.clients[i].fd = -1;
	}
	for (int n = 0; n < MESSAGES_MAX && choose_has_more(); ++n)
		act(&world.clients[once_in(3) ? pick(CLIENTS) : 0]);
	for (unsigned int i = 0; i < CLIENTS; ++i) {
		if (world.clients[i].fd >= 0 && (length + i) % 4)
			client_finish(&world.clients[i]);
		client_close(&world.clients[i]);
	}
	host_end(n_inputs++ % CHECK_EVERY == 0);
	return 0;
}

/* ---- the end of a run */

void session_drain(void)
{
	struct fa_wire_message message = { .type = FA_WIRE_HELLO };
	struct client *client = &world.clients[0];

	choose_from(NULL, 0);
	host_begin();
	client_open(client, false);
	message.hello.version_min = message.hello.version_max = 1;
	client_send(client, &message, NULL, 0, false, false, NULL);
	client_settle(client, 5 * FA_NS_PER_SEC);
	message = (struct fa_wire_message){ .type = FA_WIRE_DRAIN };
	client_send(client, &message, NULL, 0, false, false, NULL);
	client_settle(client, 5 * FA_NS_PER_SEC);
	client_close(client);
	host_stop();
}

static struct kind_count print_counts(void)
{
	struct kind_count all = { 0 };

	printf("%-18s %9s %9s %9s %9s\n", "message", "sent", "by ring", "answered", "succeeded");
	for (unsigned int i = 1; i < _FA_WIRE_TYPE_N; ++i) {
		const struct kind_count *count = &counts[i];

		if (!count->n_sent)
			continue;
		printf("%-18s %9lu %9lu %9lu %7.1f %%\n", fa_wire_type_name((enum fa_wire_type)i),
		       count->n_sent, count->n_by_ring, count->n_answered,
		       100.0 * (double)count->n_succeeded / (double)count->n_sent);
		all.n_sent += count->n_sent;
		all.n_by_ring += count->n_by_ring;
		all.n_answered += count->n_answered;
		all.n_succeeded += count->n_succeeded;
	}
	printf("%-18s %9lu %9lu %9lu %7.1f %%\n", "all", all.n_sent, all.n_by_ring, all.n_answered,
	       all.n_sent ? 100.0 * (double)all.n_succeeded / (double)all.n_sent : 0);
	fflush(stdout);
	return all;
}

static void report(void)
{
	(void)print_counts();
}

bool session_report(void)
{
	const struct kind_count all = print_counts();
	bool good = all.n_succeeded * 2 >= all.n_sent;

	if (!good)
		printf("Less than half of the messages succeeded.\n");
	for (unsigned int i = 0; i < sizeof(kinds) / sizeof(*kinds); ++i)
		if (!counts[kinds[i]].n_succeeded) {
			printf("No %s succeeded.\n", fa_wire_type_name(kinds[i]));
			good = false;
		}
	return good;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return atexit(report);
}
