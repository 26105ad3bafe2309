/*
 * The submission ring: messages of one producer, the client, for one consumer, the
 * daemon, through memory that both write. Each end keeps its own state in private
 * memory and looks at the shared words as at anything that comes from outside: the
 * consumer believes nothing, since the other side may write whatever it likes, whenever
 * it likes. No end ever waits here.
 *
 * The memory is a page with the words below and then `bytes` bytes of data, a power of
 * two. `tail` and `head` count the bytes that were put and taken since the beginning. An
 * entry is 8 bytes, its length and its flags, and the message, padded to 8 bytes; it
 * never wraps: where too little is left before the end of the data, an entry with
 * FA_RING_SKIP leads back to the start.
 *
 * Sleeping. Whoever is about to sleep exchanges a word for 1 and looks once more; whoever
 * has something new for him writes it and then exchanges that word for 0. One exchange
 * comes first: if it is the sleeper's, the other sees the 1 and wakes him; if not, the
 * sleeper sees what is new. So no wake-up is lost:
 *   asleep  the consumer wants its doorbell rung for new entries
 *   armed   the producer wants to be woken when a request has ended
 *   full    the producer wants to be woken when there is room
 * One sleep costs one wake-up.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_RING_HEAD_BYTES 4096
#define FA_RING_BYTES_MIN 4096u
#define FA_RING_BYTES_MAX (1u << 20)
/* Whatever lies in it, when it is empty it takes the longest message there is. */
#define FA_RING_BYTES_DEFAULT (1u << 18)

#define FA_RING_ENTRY_BYTES 8
#define FA_RING_SKIP (1u << 0) /* flags: no message */

struct fa_ring_words {
	_Alignas(64) _Atomic uint64_t tail; /* the producer's */
	_Alignas(64) _Atomic uint64_t head; /* the consumer's */
	_Alignas(64) _Atomic uint32_t asleep;
	_Alignas(64) _Atomic uint32_t armed;
	_Alignas(64) _Atomic uint32_t full;
};

_Static_assert(sizeof(struct fa_ring_words) <= FA_RING_HEAD_BYTES, "the words fit their page");

/* Whether a ring may have so many bytes of data. */
bool fa_ring_is_size(uint64_t bytes);

/* ---- the producer's end; one thread at a time */

struct fa_ring_producer {
	struct fa_ring_words *words;
	uint8_t *data;
	uint64_t bytes;
	uint64_t tail;
	uint64_t head; /* as it was seen last */
};

/* @memory is a new ring of @bytes of data. */
void fa_ring_producer_init(struct fa_ring_producer *ring, void *memory, uint64_t bytes);

/*
 * Puts a message, or nothing: -EAGAIN there is no room, -EMSGSIZE there never is,
 * -EPROTO the consumer's word makes no sense.
 */
int fa_ring_put(struct fa_ring_producer *ring, const void *message, size_t length);

/* After one or more puts: whether the consumer sleeps, and its doorbell is to be rung. */
bool fa_ring_must_ring(struct fa_ring_producer *ring);

/* Before the last look and the sleep for results, and after it. */
void fa_ring_arm(struct fa_ring_producer *ring);
void fa_ring_disarm(struct fa_ring_producer *ring);

/* Before the last try and the sleep for room. */
void fa_ring_want_room(struct fa_ring_producer *ring);

bool fa_ring_has_room(const struct fa_ring_producer *ring, size_t length);
bool fa_ring_is_armed(const struct fa_ring_producer *ring);

/* ---- the consumer's end; one thread at a time, but for fa_ring_must_wake() */

struct fa_ring_consumer {
	struct fa_ring_words *words;
	const uint8_t *data;
	uint64_t bytes;
	uint64_t head;
	uint64_t tail; /* as it was seen last */
};

/* The same memory, zeroed. It sleeps at first. */
void fa_ring_consumer_init(struct fa_ring_consumer *ring, void *memory, uint64_t bytes);

/*
 * Copies the next message to @buffer, which has room for the longest, @max. -EAGAIN there
 * is none. -EPROTO the producer wrote nonsense, and *ret_wrong is a sentence that says
 * what; it is over with this ring.
 */
int fa_ring_take(struct fa_ring_consumer *ring, void *buffer, size_t max, size_t *ret_length,
                 const char **ret_wrong);

/* How far the producer has got, for fa_ring_has_reached(). */
uint64_t fa_ring_mark(const struct fa_ring_consumer *ring);
bool fa_ring_has_reached(const struct fa_ring_consumer *ring, uint64_t mark);

/* A look from afar: whether a take is worth it. */
bool fa_ring_has_news(const struct fa_ring_consumer *ring);

/* Asks for the doorbell; false if something has come meanwhile, and it is awake. */
bool fa_ring_sleep(struct fa_ring_consumer *ring);
void fa_ring_awake(struct fa_ring_consumer *ring);

/* After one or more takes: whether the producer waits for the room that they made. */
bool fa_ring_gave_room(struct fa_ring_consumer *ring);

/* After results were written: whether the producer sleeps, and is to be woken. Any thread. */
bool fa_ring_must_wake(struct fa_ring_words *words);
