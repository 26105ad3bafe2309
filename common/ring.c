#include "common/ring.h"

#include "common/memory.h"

#include <errno.h>

static uint64_t entry_word(uint32_t length, uint32_t flags)
{
	return (uint64_t)flags << 32 | length;
}

static uint64_t span_of(uint64_t length)
{
	return FA_RING_ENTRY_BYTES + ((length + 7) & ~7ull);
}

bool fa_ring_is_valid_size(uint64_t bytes)
{
	return bytes >= FA_RING_BYTES_MIN && bytes <= FA_RING_BYTES_MAX && !(bytes & (bytes - 1));
}

/* ---- the producer */

void fa_ring_producer_init(struct fa_ring_producer *ring, void *memory, uint64_t bytes)
{
	*ring = (struct fa_ring_producer){
		.words = memory,
		.data = (uint8_t *)memory + FA_RING_HEAD_BYTES,
		.bytes = bytes,
	};
}

static bool is_room(const struct fa_ring_producer *ring, uint64_t need)
{
	return need <= ring->bytes - (ring->tail - ring->head);
}

int fa_ring_put(struct fa_ring_producer *ring, const void *message, size_t length)
{
	uint64_t at = ring->tail & (ring->bytes - 1), left = ring->bytes - at;
	uint64_t span = span_of(length), skip = span > left ? left : 0;
	uint64_t word;

	if (length > UINT32_MAX || 2 * span > ring->bytes)
		return -EMSGSIZE;
	if (!is_room(ring, skip + span)) {
		uint64_t head = fa_memory_load64(&ring->words->head);

		if (ring->tail - head > ring->tail - ring->head)
			return -EPROTO;
		ring->head = head;
		if (!is_room(ring, skip + span))
			return -EAGAIN;
	}
	if (skip) {
		word = entry_word((uint32_t)(skip - FA_RING_ENTRY_BYTES), FA_RING_SKIP);
		fa_memory_write(ring->data + at, &word, sizeof(word));
		at = 0;
	}
	word = entry_word((uint32_t)length, 0);
	fa_memory_write(ring->data + at, &word, sizeof(word));
	fa_memory_write(ring->data + at + FA_RING_ENTRY_BYTES, message, length);
	ring->tail += skip + span;
	fa_memory_store64(&ring->words->tail, ring->tail);
	return 0;
}

bool fa_ring_needs_doorbell(struct fa_ring_producer *ring)
{
	return fa_memory_exchange32(&ring->words->asleep, 0);
}

void fa_ring_arm(struct fa_ring_producer *ring)
{
	(void)fa_memory_exchange32(&ring->words->armed, 1);
}

void fa_ring_disarm(struct fa_ring_producer *ring)
{
	fa_memory_store32(&ring->words->armed, 0);
}

void fa_ring_arm_room(struct fa_ring_producer *ring)
{
	(void)fa_memory_exchange32(&ring->words->full, 1);
}

bool fa_ring_has_room(const struct fa_ring_producer *ring, size_t length)
{
	uint64_t left = ring->bytes - (ring->tail & (ring->bytes - 1)), span = span_of(length);
	uint64_t used = ring->tail - fa_memory_load64(&ring->words->head);

	return used + (span > left ? left : 0) + span <= ring->bytes;
}

bool fa_ring_is_armed(const struct fa_ring_producer *ring)
{
	return fa_memory_load32(&ring->words->armed);
}

/* ---- the consumer */

void fa_ring_consumer_init(struct fa_ring_consumer *ring, void *memory, uint64_t bytes)
{
	*ring = (struct fa_ring_consumer){
		.words = memory,
		.data = (const uint8_t *)memory + FA_RING_HEAD_BYTES,
		.bytes = bytes,
	};
	fa_memory_store32(&ring->words->asleep, 1);
}

static int wrong(const char *text, const char **ret_wrong)
{
	*ret_wrong = text;
	return -EPROTO;
}

static int look(struct fa_ring_consumer *ring, const char **ret_wrong)
{
	uint64_t tail = fa_memory_load64(&ring->words->tail);

	if (tail == ring->tail)
		return 0;
	if (tail - ring->tail > INT64_MAX)
		return wrong("the ring's tail went backwards", ret_wrong);
	if (tail - ring->head > ring->bytes)
		return wrong("the ring's tail is further ahead than the ring is long", ret_wrong);
	if (tail % FA_RING_ENTRY_BYTES)
		return wrong("the ring's tail is no multiple of 8", ret_wrong);
	ring->tail = tail;
	return 0;
}

/* The entry at head must lie before tail and before the end of the data. */
static int entry(const struct fa_ring_consumer *ring, size_t max, uint32_t *ret_length,
                 bool *ret_skip, const char **ret_wrong)
{
	uint64_t at = ring->head & (ring->bytes - 1), left = ring->bytes - at;
	uint64_t span, word;
	uint32_t flags;

	/* Read once, because the producer may change it. */
	fa_memory_read(&word, ring->data + at, sizeof(word));
	*ret_length = (uint32_t)word;
	flags = (uint32_t)(word >> 32);
	span = span_of(*ret_length);

	if (flags & ~FA_RING_SKIP)
		return wrong("an entry of the ring has unknown flags", ret_wrong);
	*ret_skip = flags & FA_RING_SKIP;
	if (*ret_skip && span != left)
		return wrong("an entry of the ring skips something else than the rest of it",
		             ret_wrong);
	if (!*ret_skip && (!*ret_length || *ret_length > max))
		return wrong("an entry of the ring is empty, or longer than a message may be",
		             ret_wrong);
	if (span > left)
		return wrong("an entry of the ring crosses its end", ret_wrong);
	if (span > ring->tail - ring->head)
		return wrong("an entry of the ring is longer than what was put", ret_wrong);
	return 0;
}

static void advance(struct fa_ring_consumer *ring, uint32_t length)
{
	ring->head += span_of(length);
	fa_memory_store64(&ring->words->head, ring->head);
}

int fa_ring_take(struct fa_ring_consumer *ring, void *buffer, size_t max, size_t *ret_length,
                 const char **ret_wrong)
{
	uint32_t length;
	bool skip;
	int r;

	if (ring->head == ring->tail) {
		r = look(ring, ret_wrong);
		if (r < 0)
			return r;
	}
	/* After a skip the next entry is at the start. */
	for (int i = 0; i < 2; ++i) {
		if (ring->head == ring->tail)
			return -EAGAIN;
		r = entry(ring, max, &length, &skip, ret_wrong);
		if (r < 0)
			return r;
		if (!skip) {
			fa_memory_read(buffer,
			               ring->data + (ring->head & (ring->bytes - 1)) +
			                       FA_RING_ENTRY_BYTES,
			               length);
			advance(ring, length);
			*ret_length = length;
			return 0;
		}
		advance(ring, length);
	}
	return wrong("an entry of the ring skips all of it", ret_wrong);
}

uint64_t fa_ring_mark(const struct fa_ring_consumer *ring)
{
	const uint64_t tail = fa_memory_load64(&ring->words->tail);

	/* An invalid tail counts as a full ring. */
	return tail - ring->head > ring->bytes ? ring->head + ring->bytes : tail;
}

bool fa_ring_has_reached(const struct fa_ring_consumer *ring, uint64_t mark)
{
	return ring->head - mark <= INT64_MAX;
}

bool fa_ring_has_entries(const struct fa_ring_consumer *ring)
{
	return fa_memory_load64(&ring->words->tail) != ring->head;
}

bool fa_ring_sleep(struct fa_ring_consumer *ring)
{
	(void)fa_memory_exchange32(&ring->words->asleep, 1);
	if (!fa_ring_has_entries(ring))
		return true;
	fa_ring_awake(ring);
	return false;
}

void fa_ring_awake(struct fa_ring_consumer *ring)
{
	fa_memory_store32(&ring->words->asleep, 0);
}

bool fa_ring_needs_room_wakeup(struct fa_ring_consumer *ring)
{
	return fa_memory_exchange32(&ring->words->full, 0);
}

bool fa_ring_needs_wakeup(struct fa_ring_words *words)
{
	return fa_memory_exchange32(&words->armed, 0);
}
