/*
 * Messages come out whole and in order, at every length and around the end; a full ring takes
 * nothing; whatever a hostile producer writes, the consumer stays inside the memory and ends.
 */
#include "common/results.h"
#include "common/ring.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MESSAGE_MAX 65536

static struct fa_ring_producer producer;
static struct fa_ring_consumer consumer;
static unsigned char *memory;
static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % n;
}

/* The memory has the exact size, so that sanitizers see overruns. */
static void make(uint64_t bytes)
{
	free(memory);
	memory = aligned_alloc(64, FA_RING_HEAD_BYTES + bytes);
	assert_non_null(memory);
	memset(memory, 0, FA_RING_HEAD_BYTES + bytes);
	fa_ring_consumer_init(&consumer, memory, bytes);
	fa_ring_producer_init(&producer, memory, bytes);
}

static void fill(unsigned char *message, size_t length, uint64_t number)
{
	for (size_t i = 0; i < length; ++i)
		message[i] = (unsigned char)(number * 31 + i);
}

static void expect(uint64_t number, size_t length)
{
	static unsigned char got[MESSAGE_MAX], wanted[MESSAGE_MAX];
	const char *wrong;
	size_t n = 0;

	assert_int_equal(fa_ring_take(&consumer, got, sizeof(got), &n, &wrong), 0);
	assert_int_equal(n, length);
	fill(wanted, length, number);
	assert_memory_equal(got, wanted, length);
}

static void expect_nothing(void)
{
	unsigned char byte;
	const char *wrong;
	size_t n;

	assert_int_equal(fa_ring_take(&consumer, &byte, 1, &n, &wrong), -EAGAIN);
	assert_false(fa_ring_has_entries(&consumer));
}

static void test_sizes(void **state)
{
	assert_true(fa_ring_is_valid_size(FA_RING_BYTES_MIN));
	assert_true(fa_ring_is_valid_size(FA_RING_BYTES_MAX));
	assert_true(fa_ring_is_valid_size(FA_RING_BYTES_DEFAULT));
	assert_false(fa_ring_is_valid_size(0));
	assert_false(fa_ring_is_valid_size(FA_RING_BYTES_MIN / 2));
	assert_false(fa_ring_is_valid_size((uint64_t)FA_RING_BYTES_MAX * 2));
	assert_false(fa_ring_is_valid_size(FA_RING_BYTES_MIN + 8));
	/* The default size takes the longest message at any tail. */
	assert_true(2 * (MESSAGE_MAX + FA_RING_ENTRY_BYTES) <= FA_RING_BYTES_DEFAULT);
}

/* Random lengths at random fill levels, compared with a queue. */
static void test_order(void **state)
{
	static unsigned char message[MESSAGE_MAX];
	static uint32_t lengths[1u << 16];
	uint64_t put = 0, taken = 0;
	bool was_full = false;

	make(FA_RING_BYTES_MIN);
	while (taken < 200000) {
		uint32_t length = 1 + below(below(8) ? 100 : FA_RING_BYTES_MIN / 2 - 8);
		int r;

		if (below(2) && put - taken < 60000) {
			bool room = fa_ring_has_room(&producer, length);

			fill(message, length, put);
			r = fa_ring_put(&producer, message, length);
			assert_int_equal(r, room ? 0 : -EAGAIN);
			if (r == 0)
				lengths[put++ % (1u << 16)] = length;
			was_full = was_full || r == -EAGAIN;
		} else if (put > taken) {
			assert_true(fa_ring_has_entries(&consumer));
			expect(taken, lengths[taken % (1u << 16)]);
			++taken;
		} else {
			expect_nothing();
		}
	}
	assert_true(was_full);
}

static void test_full(void **state)
{
	unsigned char message[56];
	uint64_t n = 0;

	make(FA_RING_BYTES_MIN);
	fill(message, sizeof(message), 0);
	while (fa_ring_put(&producer, message, sizeof(message)) == 0)
		++n;
	assert_int_equal(n, FA_RING_BYTES_MIN / 64);
	assert_false(fa_ring_has_room(&producer, 1));
	assert_int_equal(fa_ring_put(&producer, message, 1), -EAGAIN);
	expect(0, sizeof(message));
	assert_true(fa_ring_has_room(&producer, sizeof(message)));
	assert_int_equal(fa_ring_put(&producer, message, sizeof(message)), 0);
	for (; n; --n)
		expect(0, sizeof(message));
	expect_nothing();
}

static void test_too_long(void **state)
{
	static unsigned char message[FA_RING_BYTES_MIN];

	make(FA_RING_BYTES_MIN);
	assert_int_equal(fa_ring_put(&producer, message, FA_RING_BYTES_MIN), -EMSGSIZE);
	assert_int_equal(fa_ring_put(&producer, message, FA_RING_BYTES_MIN / 2), -EMSGSIZE);
	assert_int_equal(fa_ring_put(&producer, message, FA_RING_BYTES_MIN / 2 - 8), 0);
}

/* ---- sleeping and the doorbell */

static void take_one(unsigned char wanted)
{
	unsigned char byte;
	const char *wrong;
	size_t n;

	assert_int_equal(fa_ring_take(&consumer, &byte, 1, &n, &wrong), 0);
	assert_int_equal(byte, wanted);
}

static void test_doorbell(void **state)
{
	make(FA_RING_BYTES_MIN);
	/* The consumer sleeps, and is woken once. */
	assert_int_equal(fa_ring_put(&producer, "1", 1), 0);
	assert_true(fa_ring_needs_doorbell(&producer));
	assert_int_equal(fa_ring_put(&producer, "2", 1), 0);
	assert_false(fa_ring_needs_doorbell(&producer));
	assert_false(fa_ring_sleep(&consumer));
	assert_false(fa_ring_needs_doorbell(&producer));
	take_one('1');
	take_one('2');
	assert_true(fa_ring_sleep(&consumer));
	assert_int_equal(fa_ring_put(&producer, "3", 1), 0);
	assert_true(fa_ring_needs_doorbell(&producer));
}

static void test_armed(void **state)
{
	make(FA_RING_BYTES_MIN);
	assert_false(fa_ring_needs_wakeup(consumer.words));
	fa_ring_arm(&producer);
	assert_true(fa_ring_is_armed(&producer));
	assert_true(fa_ring_needs_wakeup(consumer.words));
	assert_false(fa_ring_needs_wakeup(consumer.words));
	assert_false(fa_ring_is_armed(&producer));
	fa_ring_arm(&producer);
	fa_ring_disarm(&producer);
	assert_false(fa_ring_needs_wakeup(consumer.words));

	assert_false(fa_ring_needs_room_wakeup(&consumer));
	fa_ring_arm_room(&producer);
	assert_true(fa_ring_needs_room_wakeup(&consumer));
	assert_false(fa_ring_needs_room_wakeup(&consumer));
}

static void test_marks(void **state)
{
	uint64_t mark;

	make(FA_RING_BYTES_MIN);
	assert_true(fa_ring_has_reached(&consumer, fa_ring_mark(&consumer)));
	assert_int_equal(fa_ring_put(&producer, "", 1), 0);
	mark = fa_ring_mark(&consumer);
	assert_false(fa_ring_has_reached(&consumer, mark));
	assert_int_equal(fa_ring_put(&producer, "", 1), 0);
	expect(0, 1);
	assert_true(fa_ring_has_reached(&consumer, mark));
	assert_false(fa_ring_has_reached(&consumer, fa_ring_mark(&consumer)));
}

/* ---- a hostile producer */

/* Forges one word; the refusal's text must contain @part. */
static void refuse(const char *part)
{
	static unsigned char buffer[MESSAGE_MAX];
	const char *wrong = NULL;
	size_t n = 77;

	assert_int_equal(fa_ring_take(&consumer, buffer, sizeof(buffer), &n, &wrong), -EPROTO);
	assert_non_null(strstr(wrong, part));
	assert_int_equal(n, 77);
}

static void forge_entry(uint64_t at, uint32_t length, uint32_t flags)
{
	uint64_t word = (uint64_t)flags << 32 | length;

	memcpy(memory + FA_RING_HEAD_BYTES + at, &word, sizeof(word));
}

static void forge_tail(uint64_t tail)
{
	atomic_store(&consumer.words->tail, tail);
}

static void test_forged_tail(void **state)
{
	static const struct {
		uint64_t tail;
		const char *part;
	} forged[] = {
		{ FA_RING_BYTES_MIN + 8, "ahead" },
		{ UINT64_MAX, "backwards" },
		{ (uint64_t)INT64_MAX + 1, "backwards" },
		{ INT64_MAX, "ahead" },
		{ 12, "multiple" },
		{ 1, "multiple" },
	};

	for (size_t i = 0; i < sizeof(forged) / sizeof(*forged); ++i) {
		make(FA_RING_BYTES_MIN);
		forge_tail(forged[i].tail);
		refuse(forged[i].part);
	}
	/* The tail moves back, but not behind the head. */
	make(FA_RING_BYTES_MIN);
	for (int i = 0; i < 3; ++i)
		assert_int_equal(fa_ring_put(&producer, "", 1), 0);
	expect(0, 1);
	for (int i = 0; i < 2; ++i)
		expect(0, 1);
	forge_tail(16);
	refuse("backwards");
}

static void test_forged_entry(void **state)
{
	static const struct {
		uint32_t length, flags;
		uint64_t tail;
		const char *part;
	} forged[] = {
		{ 0, 0, 64, "empty" },
		{ 65537, 0, 64, "longer" },
		{ UINT32_MAX, 0, 64, "longer" },
		{ UINT32_MAX - 7, FA_RING_SKIP, 64, "skips" },
		{ 57, 0, 64, "than what was put" },
		{ 8, 2, 64, "flags" },
		{ 8, UINT32_MAX, 64, "flags" },
		{ 8, FA_RING_SKIP, 64, "skips" },
		{ FA_RING_BYTES_MIN, 0, FA_RING_BYTES_MIN, "crosses" },
		{ FA_RING_BYTES_MIN - 8, FA_RING_SKIP, FA_RING_BYTES_MIN - 8, "than what was put" },
	};

	for (size_t i = 0; i < sizeof(forged) / sizeof(*forged); ++i) {
		make(FA_RING_BYTES_MIN);
		forge_entry(0, forged[i].length, forged[i].flags);
		forge_tail(forged[i].tail);
		refuse(forged[i].part);
	}
}

/* Skip entries all over the ring: a poll must end. */
static void test_forged_skips(void **state)
{
	unsigned char byte;
	const char *wrong;
	size_t n;

	make(FA_RING_BYTES_MIN);
	forge_entry(0, FA_RING_BYTES_MIN - 8, FA_RING_SKIP);
	forge_tail(FA_RING_BYTES_MIN);
	assert_int_equal(fa_ring_take(&consumer, &byte, 1, &n, &wrong), -EAGAIN);
	for (uint64_t i = 2; i < 10; ++i) {
		forge_tail(i * FA_RING_BYTES_MIN);
		assert_int_equal(fa_ring_take(&consumer, &byte, 1, &n, &wrong), -EAGAIN);
	}
}

/* Noise everywhere: every entry is taken or refused. */
static void test_noise(void **state)
{
	static unsigned char buffer[MESSAGE_MAX];
	uint64_t n_taken = 0, n_refused = 0;

	for (int round = 0; round < 20000; ++round) {
		make(FA_RING_BYTES_MIN);
		for (int i = 0; i < 64; ++i)
			forge_entry(below(FA_RING_BYTES_MIN / 8) * 8, below(256), !below(8));
		forge_tail(below(4) ? below(FA_RING_BYTES_MIN / 8) * 8 : seed);
		for (int i = 0; i < 1000; ++i) {
			const char *wrong;
			size_t n;
			int r = fa_ring_take(&consumer, buffer, sizeof(buffer), &n, &wrong);

			if (r == -EAGAIN)
				break;
			n_taken += r == 0;
			n_refused += r == -EPROTO;
			assert_true(i < 999);
			if (r == -EPROTO)
				break;
			assert_true(n >= 1 && n <= FA_RING_BYTES_MIN);
		}
	}
	assert_true(n_taken > 1000 && n_refused > 1000);
}

/* The producer checks the daemon's head, too. */
static void test_forged_head(void **state)
{
	make(FA_RING_BYTES_MIN);
	while (fa_ring_put(&producer, "0123456", 8) == 0)
		;
	atomic_store(&producer.words->head, UINT64_MAX - 7);
	assert_int_equal(fa_ring_put(&producer, "", 1), -EPROTO);
	atomic_store(&producer.words->head, producer.tail + 8);
	assert_int_equal(fa_ring_put(&producer, "", 1), -EPROTO);
}

/* ---- two threads */

#define RACED 300000u

static void *produce(void *unused)
{
	static unsigned char message[512];

	for (uint64_t i = 0; i < RACED; ++i) {
		size_t length = 8 + i % 250;

		memset(message, (int)(i & 0xff), length);
		memcpy(message, &i, sizeof(i));
		while (fa_ring_put(&producer, message, length) < 0)
			(void)sched_yield();
	}
	return unused;
}

static void test_two_threads(void **state)
{
	static unsigned char message[MESSAGE_MAX];
	pthread_t thread;
	const char *wrong;

	make(FA_RING_BYTES_MIN);
	assert_int_equal(pthread_create(&thread, NULL, produce, NULL), 0);
	for (uint64_t i = 0; i < RACED;) {
		size_t n;
		int r = fa_ring_take(&consumer, message, sizeof(message), &n, &wrong);

		if (r == -EAGAIN) {
			(void)sched_yield();
			continue;
		}
		assert_int_equal(r, 0);
		assert_int_equal(n, 8 + i % 250);
		assert_memory_equal(message, &i, sizeof(i));
		for (size_t k = sizeof(i); k < n; ++k)
			assert_int_equal(message[k], i & 0xff);
		++i;
	}
	pthread_join(thread, NULL);
	expect_nothing();
}

/* ---- completion records */

#define RECORDED 400000u

static struct fa_record record;

static void *write_records(void *unused)
{
	for (uint64_t i = 1; i <= RECORDED; ++i) {
		const struct fa_outcome outcome = { -(int32_t)(i % 100), i, i * 3, i * 7, i * 11 };

		fa_record_write(&record, i, &outcome);
	}
	return unused;
}

static void test_records(void **state)
{
	struct fa_outcome outcome = { .status = 5 };
	uint64_t seen = 0;
	pthread_t thread;

	assert_false(fa_record_read(&record, 1, &outcome));
	assert_int_equal(outcome.status, 5);
	assert_int_equal(pthread_create(&thread, NULL, write_records, NULL), 0);
	while (seen < RECORDED) {
		uint64_t value = atomic_load_explicit(&record.value, memory_order_relaxed);

		if (!value || !fa_record_read(&record, value, &outcome))
			continue;
		assert_int_equal(outcome.status, -(int32_t)(value % 100));
		assert_int_equal(outcome.queued_ns, value);
		assert_int_equal(outcome.started_ns, value * 3);
		assert_int_equal(outcome.finished_ns, value * 7);
		assert_int_equal(outcome.number, value * 11);
		assert_true(value >= seen);
		seen = value;
	}
	pthread_join(thread, NULL);
	assert_false(fa_record_read(&record, RECORDED - 1, &outcome));
	assert_int_equal(fa_record_index(0, 8, 9), 1);
	assert_int_equal(fa_record_index(3, 8, 7), 31);
	assert_int_equal(fa_results_bytes(8), 64 * 8 * 64);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),        cmocka_unit_test(test_order),
		cmocka_unit_test(test_full),         cmocka_unit_test(test_too_long),
		cmocka_unit_test(test_doorbell),     cmocka_unit_test(test_armed),
		cmocka_unit_test(test_marks),        cmocka_unit_test(test_forged_tail),
		cmocka_unit_test(test_forged_entry), cmocka_unit_test(test_forged_skips),
		cmocka_unit_test(test_noise),        cmocka_unit_test(test_forged_head),
		cmocka_unit_test(test_two_threads),  cmocka_unit_test(test_records),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);

	free(memory);
	return r;
}
