/*
 * The submission ring: one producer, the client, sends messages to one consumer, the daemon,
 * through memory that both can write. Each end keeps its state in private memory; the consumer
 * trusts nothing in the shared memory, which may change at any time. No function blocks.
 *
 * The memory is a page with the words below, then `bytes` of data, a power of two. `tail` and
 * `head` count all bytes that were put and taken. An entry is a length, flags (8 bytes together)
 * and the message, padded to 8 bytes. It never wraps: if the end of the data is too near, an entry
 * with FA_RING_SKIP leads back to the start.
 *
 * Sleeping: an end that is about to sleep exchanges a word for 1 and looks once more; the other
 * end publishes its change and then exchanges the word for 0. Whichever exchange is second sees
 * the other end's write, so no wake-up is lost, and one sleep costs one wake-up. The words:
 *   asleep  the consumer waits for entries, and for its doorbell
 *   armed   the producer waits for results
 *   full    the producer waits for room
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_RING_HEAD_BYTES 4096
#define FA_RING_BYTES_MIN 4096u
#define FA_RING_BYTES_MAX (1u << 20)
/* An empty ring of this size takes the longest message, wherever head is. */
#define FA_RING_BYTES_DEFAULT (1u << 18)

#define FA_RING_ENTRY_BYTES 8
#define FA_RING_SKIP (1u << 0) /* no message */

struct fa_ring_words {
	_Alignas(64) _Atomic uint64_t tail; /* by the producer */
	_Alignas(64) _Atomic uint64_t head; /* by the consumer */
	_Alignas(64) _Atomic uint32_t asleep;
	_Alignas(64) _Atomic uint32_t armed;
	_Alignas(64) _Atomic uint32_t full;
};

_Static_assert(sizeof(struct fa_ring_words) <= FA_RING_HEAD_BYTES, "the words fit their page");

bool fa_ring_is_valid_size(uint64_t bytes);

/* ---- the producer; one thread at a time */

struct fa_ring_producer {
	struct fa_ring_words *words;
	uint8_t *data;
	uint64_t bytes;
	uint64_t tail;
	uint64_t head; /* as last seen */
};

/* @memory: a new ring with @bytes of data. */
void fa_ring_producer_init(struct fa_ring_producer *ring, void *memory, uint64_t bytes);

/* Returns 0; -EAGAIN no room; -EMSGSIZE it can never fit; -EPROTO the consumer's head is
 * invalid. */
int fa_ring_put(struct fa_ring_producer *ring, const void *message, size_t length);

/* Call it after puts. If true, ring the doorbell. */
bool fa_ring_needs_doorbell(struct fa_ring_producer *ring);

/* Arm before the last look for results, disarm after the sleep. */
void fa_ring_arm(struct fa_ring_producer *ring);
void fa_ring_disarm(struct fa_ring_producer *ring);

/* Call it before the last put, then sleep for room. */
void fa_ring_arm_room(struct fa_ring_producer *ring);

bool fa_ring_has_room(const struct fa_ring_producer *ring, size_t length);
bool fa_ring_is_armed(const struct fa_ring_producer *ring);

/* ---- the consumer; one thread at a time, except fa_ring_needs_wakeup() */

struct fa_ring_consumer {
	struct fa_ring_words *words;
	const uint8_t *data;
	uint64_t bytes;
	uint64_t head;
	uint64_t tail; /* as last seen */
};

/* The consumer starts asleep. @memory is zeroed. */
void fa_ring_consumer_init(struct fa_ring_consumer *ring, void *memory, uint64_t bytes);

/* Copies the next message to @buffer (@max: the longest message). Returns 0; -EAGAIN none; -EPROTO
 * invalid data, described by *ret_wrong: the ring is unusable from then on. */
int fa_ring_take(struct fa_ring_consumer *ring, void *buffer, size_t max, size_t *ret_length,
                 const char **ret_wrong);

/* Return the end of the present entries, and true once all up to @mark are taken. */
uint64_t fa_ring_mark(const struct fa_ring_consumer *ring);
bool fa_ring_has_reached(const struct fa_ring_consumer *ring, uint64_t mark);

bool fa_ring_has_entries(const struct fa_ring_consumer *ring);

/* True: the consumer may sleep on its doorbell; false: entries have come. */
bool fa_ring_sleep(struct fa_ring_consumer *ring);
void fa_ring_awake(struct fa_ring_consumer *ring);

/* Call it after takes. True: wake the producer, which waits for room. */
bool fa_ring_needs_room_wakeup(struct fa_ring_consumer *ring);

/* Call it after results are written. True: wake the producer. Any thread. */
bool fa_ring_needs_wakeup(struct fa_ring_words *words);
