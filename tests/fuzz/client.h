/*
 * The clients of fuzz-session: what each has created, what it was not answered yet, and counts per
 * kind of message. Every answer must belong to a request that still waits for one.
 */
#pragma once

#include "common/completion.h"
#include "common/results.h"
#include "common/ring.h"
#include "common/timeline.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CLIENTS = 4,
	BUFFERS = 5,
	STEPS = 4,
	ITEMS = 3,
	CACHES = 8,
	SEQUENCES = 32,
	PENDING = 256,
	FDS = 20,
	BUFFER_BYTES = 65536,
	TOKENS_MAX = 24, /* new tokens of one item */
};

struct buffer {
	uint32_t id; /* 0: none */
	uint64_t bytes;
	bool read_only, host;
};

struct cache {
	uint64_t id; /* 0: none */
	unsigned int owner;
	uint32_t name; /* 0: none */
	bool other;    /* of the other user */
	uint32_t flags, layers, kv_heads, head_dim, head_dim_v;
	uint8_t dtype;
	uint32_t states; /* how many; the first ones of state_bytes */
};

struct sequence {
	uint64_t id, cache; /* 0: none */
	unsigned int owner;
	uint32_t name;
	bool other;
	uint64_t first, length;
	unsigned int n_steps; /* in flight */
};

struct item {
	uint64_t sequence;
	uint32_t n, kept;
};

struct step {
	uint32_t id; /* 0: none */
	uint64_t cache;
	uint32_t layer, n_items, n_tokens, stream;
	struct item items[ITEMS];
};

/* A message that is not answered yet. Vectors of the copy are not valid. */
struct pending {
	struct fa_wire_message message;
	bool of_stream, has_stream, by_ring;
	uint32_t stream, n, n_answers, n_failed;
	uint64_t value;
	int32_t status;
	struct step step; /* StepBegin, StepEnd */
};

struct client {
	int fd; /* -1: none */
	unsigned int index;
	bool other; /* another user */
	bool ready; /* Hello was answered */
	uint64_t next_id;
	struct fa_wire_secret secret;
	uint64_t generation;

	bool streams[FA_COMPLETION_SLOTS];
	uint64_t values[FA_COMPLETION_SLOTS]; /* last ones */
	struct buffer buffers[BUFFERS];
	struct step steps[STEPS];
	uint32_t last_step;
	uint32_t registering; /* the buffer that waits for pieces; 0: none */
	uint32_t n_pieces;    /* pieces that are missing */

	const struct fa_completion_slot *page;
	struct fa_timeline_in *in;
	uint64_t signalled[FA_TIMELINE_SLOTS];
	struct fa_ring_producer ring;
	unsigned char *ring_memory; /* NULL: no ring */
	const struct fa_record *records;
	uint32_t n_records;
	uint64_t results_bytes;
	int doorbell, wake;
	bool loose;  /* a record was overwritten before it was read */
	bool forged; /* the client has forged its ring: entries may have other contents */

	struct pending pending[PENDING];
	unsigned int n_pending;
};

/* What all clients of an input share. */
struct world {
	struct client clients[CLIENTS];
	struct cache caches[CACHES];
	struct sequence sequences[SEQUENCES];
	uint64_t dead; /* an id that was freed */
};

extern struct world world;

void client_open(struct client *client, bool other);
void client_close(struct client *client);

/*
 * Sends @message with descriptors, which are closed, by the ring if @by_ring and the client has
 * one. @mangle: changes bytes of the encoded message. @step: of a StepBegin or StepEnd.
 */
void client_send(struct client *client, struct fa_wire_message *message, const int *fds,
                 size_t n_fds, bool by_ring, bool mangle, const struct step *step);

/* Writes invalid words or entries to the ring. */
void client_forge_ring(struct client *client);

/* Reads and checks answers. */
void client_read(struct client *client);

/* Returns true if message @id is not answered yet. */
bool client_awaits(const struct client *client, uint64_t id);

/* Runs the daemon until all messages are answered, or for @patience_ns. */
bool client_settle(struct client *client, uint64_t patience_ns);

/* Cancels all requests. */
void client_cancel(struct client *client);

/* Demands an answer to every message. */
void client_finish(struct client *client);

struct cache *find_cache(uint64_t id);
struct sequence *find_sequence(uint64_t id);

/* Changes the model as a successful answer says. @answer: NULL if it came by the ring. */
void model_answered(struct client *client, const struct pending *pending,
                    const struct fa_wire_message *answer, const int *fds);
void model_failed(struct client *client, const struct pending *pending);
void model_close(struct client *client);

/* ---- counts */

struct kind_count {
	uint64_t n_sent, n_answered, n_succeeded, n_by_ring;
};

extern struct kind_count counts[_FA_WIRE_TYPE_N];
