/*
 * Rings of malicious clients: forged words and entries, changes while requests run, deaths with a
 * full ring. At most their own connection ends.
 */
#include "common/cleanup.h"
#include "tests/daemon/ring-scene.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_test_random numbers = { 7 };

static void forge_entry(uint64_t at, uint32_t length, uint32_t flags)
{
	uint64_t word = (uint64_t)flags << 32 | length;

	memcpy(ring.memory + FA_RING_HEAD_BYTES + at, &word, sizeof(word));
}

static void expect_refusal(const char *part)
{
	fa_raw_ring_bell(&ring);
	fa_raw_expect_reply(&raw, 0, -EPROTO, part, true);
	close_ring();
}

static void test_forged(void **state)
{
	static const struct {
		uint64_t tail;
		uint32_t length, flags;
		const char *part;
	} forged[] = {
		{ 4096 + 8, 8, 0, "ahead" },
		{ UINT64_MAX - 7, 8, 0, "backwards" },
		{ (uint64_t)1 << 62, 8, 0, "ahead" },
		{ 13, 8, 0, "multiple" },
		{ 64, 0, 0, "empty" },
		{ 64, 65536, 0, "crosses" },
		{ 64, UINT32_MAX, 0, "longer" },
		{ 4096, 4096, 0, "crosses" },
		{ 64, 64, 0, "put" },
		{ 64, 8, 4, "flags" },
		{ 64, 8, FA_RING_SKIP, "skips" },
		{ 64, 56, 0, "no valid message" },
	};

	for (size_t i = 0; i < sizeof(forged) / sizeof(*forged); ++i) {
		open_ring(4096);
		forge_entry(0, forged[i].length, forged[i].flags);
		atomic_store(&ring.end.words->tail, forged[i].tail);
		expect_refusal(forged[i].part);
	}
	open_ring(0);
	fa_raw_ring_marker(&ring, 0, 1);
	fa_raw_ring_wait(&raw, &ring, 0, 1);
	atomic_fetch_sub(&ring.end.words->tail, 8);
	expect_refusal("backwards");
	/* A stream's values must be in order in the ring, too. */
	open_ring(0);
	fa_raw_ring_marker(&ring, 0, 2);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.reply.status, -EPROTO);
	fa_raw_expect_end(&raw);
	close_ring();
	fa_scene_check(&scene);
}

/* Words that the daemon writes but never reads. */
static void test_other_words(void **state)
{
	open_ring(0);
	for (uint64_t value = 1; value <= 200; ++value) {
		atomic_store(&ring.end.words->head, fa_test_random(&numbers));
		atomic_store(&ring.end.words->armed, (uint32_t)fa_test_random(&numbers));
		atomic_store(&ring.end.words->full, (uint32_t)fa_test_random(&numbers));
		ring.end.head = ring.end.tail;
		fa_raw_ring_marker(&ring, 0, value);
		fa_raw_ring_bell(&ring);
		fa_raw_ring_wait(&raw, &ring, 0, value);
		ring.end.head = ring.end.tail;
	}
	fa_raw_ping(&raw);
	close_ring();
	fa_scene_check(&scene);
}

static atomic_bool scribbling;
static uint64_t scribble_bytes, scribble_from;

/* A race intended with this process itself: not for ThreadSanitizer. */
__attribute__((no_sanitize("thread"))) static void *scribble(void *unused)
{
	struct fa_test_random random = { fa_test_random(&numbers) };

	while (atomic_load(&scribbling)) {
		for (int i = 0; i < 64; ++i) {
			uint64_t at = fa_test_random_below(&random, scribble_bytes / 8) * 8;
			uint64_t word = fa_test_random_below(&random, 3)
			                        ? fa_test_random_below(&random, 512)
			                        : fa_test_random(&random);

			*(volatile uint64_t *)(ring.memory + scribble_from + at) = word;
		}
	}
	return unused;
}

static void start_scribbling(pthread_t *thread, uint64_t from, uint64_t bytes)
{
	scribble_from = from;
	scribble_bytes = bytes;
	atomic_store(&scribbling, true);
	fa_check_eq(pthread_create(thread, NULL, scribble, NULL), 0);
}

static void stop_scribbling(pthread_t thread)
{
	atomic_store(&scribbling, false);
	fa_check_eq(pthread_join(thread, NULL), 0);
}

static int scribbling_client(void *userdata)
{
	const bool words = *(bool *)userdata;
	uint64_t value = 0, deadline_ns;
	struct fa_wire_message message;
	pthread_t thread;

	numbers.state = (uint64_t)getpid();
	open_ring(words ? 0 : 4096);
	make_small();
	start_scribbling(&thread, words ? 0 : FA_RING_HEAD_BYTES, words ? 320 : 4096);
	deadline_ns = fa_deadline_ns(50 * FA_NS_PER_MS);
	while (fa_now_ns() < deadline_ns) {
		message = fa_case_message(&small, 1, 0, 0, value + 1);
		ring.end.head = ring.end.tail;
		if (fa_raw_ring_put(&ring, &message) == 0)
			++value;
		fa_raw_ring_bell(&ring);
	}
	stop_scribbling(thread);
	return 0;
}

static void test_scribbled(void **state)
{
	const int rounds = fa_test_long() ? 300 : 30;

	for (int i = 0; i < rounds; ++i) {
		bool words = i % 2;
		pid_t pid = fa_test_fork(scribbling_client, &words);

		fa_scene_bystander(&scene);
		fa_check_eq(fa_test_reap(pid), 0);
	}
	fa_scene_check(&scene);
}

/*
 * A message is handled as it was copied. Here one alternates between two valid forms, and each
 * answer fits one of them.
 */
static atomic_bool changing;

struct change {
	unsigned char *at;
	unsigned char with[2];
};

static void *change_back_and_forth(void *userdata)
{
	const struct change *change = userdata;

	for (unsigned i = 0; atomic_load(&changing); ++i)
		*(volatile unsigned char *)change->at = change->with[i % 2];
	return NULL;
}

static void test_changed(void **state)
{
	static _Alignas(8) unsigned char one[FA_WIRE_BYTES_MAX + 64], two[FA_WIRE_BYTES_MAX + 64];
	struct fa_wire_message message;
	uint64_t n_ended[2] = { 0, 0 };
	struct change change;
	pthread_t thread;
	size_t length, at = 0;

	open_ring(0);
	make_small();
	for (uint64_t value = 1; value <= 2000; ++value) {
		uint64_t put_at = FA_RING_HEAD_BYTES + FA_RING_ENTRY_BYTES;
		struct fa_outcome outcome;

		message = fa_case_message(&small, 1, 0, 0, value);
		length = fa_raw_encode(&message, one);
		message.attention.out.buffer = 2;
		fa_check_eq(fa_raw_encode(&message, two), length);
		for (at = 0; one[at] == two[at]; ++at)
			fa_check(at < length);
		if (ring.bytes - (ring.end.tail & (ring.bytes - 1)) >= length + 8)
			put_at += ring.end.tail & (ring.bytes - 1);
		change = (struct change){ ring.memory + put_at + at, { one[at], two[at] } };
		atomic_store(&changing, true);
		fa_check_eq(fa_ring_put(&ring.end, one, length), 0);
		fa_check_eq(pthread_create(&thread, NULL, change_back_and_forth, &change), 0);
		if (fa_ring_needs_doorbell(&ring.end))
			fa_raw_ring_bell(&ring);
		outcome = fa_raw_ring_wait(&raw, &ring, 0, value);
		atomic_store(&changing, false);
		pthread_join(thread, NULL);
		fa_check(outcome.status == 0 || outcome.status == -ENOENT);
		++n_ended[outcome.status != 0];
		if (outcome.status)
			fa_raw_wait_expect(&raw, 0, value, -ENOENT, "buffer is 2");
	}
	fa_check(n_ended[0]);
	fa_raw_buffer_free(&raw, &buffer);
	close_ring();
	fa_scene_check(&scene);
}

#define IN_FLIGHT 1000

static int ready[2];

static int doomed_client(void *userdata)
{
	struct fa_case slow = fa_case_slow();
	struct fa_raw_buffer slow_buffer;
	struct fa_wire_message message;

	open_ring(0);
	fa_raw_buffer_arena(&raw, &slow_buffer, 1, slow.bytes);
	message = fa_case_message(&slow, 1, 0, 0, 1);
	fa_raw_ring_send(&ring, &message);
	for (uint64_t value = 2; value <= IN_FLIGHT; ++value) {
		if (value % 3) {
			message = fa_case_message(&slow, 1, 0, 0, value);
			fa_raw_ring_send(&ring, &message);
		} else {
			fa_raw_ring_marker(&ring, 0, value);
		}
	}
	if (write(ready[1], "", 1) != 1)
		return 1;
	for (uint64_t value = 1;; ++value) {
		fa_raw_stream_create(&raw, 1 + value % 50, 0);
		fa_raw_ring_marker(&ring, 1 + value % 50, value <= 50 ? 1 : 1 + (value - 1) / 50);
		fa_raw_stream_free(&raw, 1 + value % 50);
	}
	return 0;
}

static void test_killed(void **state)
{
	const int rounds = fa_test_long() ? 200 : 20;

	fa_check_eq(pipe(ready), 0);
	for (int i = 0; i < rounds; ++i) {
		pid_t pid = fa_test_fork(doomed_client, NULL);
		char byte;

		fa_check_eq(read(ready[0], &byte, 1), 1);
		if (i % 2)
			fa_test_any_moment_us(fa_test_random_below(&numbers, 5000));
		fa_check_eq(kill(pid, SIGKILL), 0);
		fa_test_reap(pid);
		fa_check_eventually(fa_scene_is_quiet(&scene));
	}
	(void)close(ready[0]);
	(void)close(ready[1]);
	fa_scene_check(&scene);
}

static void test_stopped(void **state)
{
	pid_t pid;
	char byte;

	fa_check_eq(pipe(ready), 0);
	pid = fa_test_fork(doomed_client, NULL);
	fa_check_eq(read(ready[0], &byte, 1), 1);
	fa_check_eq(kill(pid, SIGSTOP), 0);
	for (int i = 0; i < 20; ++i)
		fa_scene_bystander(&scene);
	fa_check_eq(kill(pid, SIGKILL), 0);
	fa_test_reap(pid);
	(void)close(ready[0]);
	(void)close(ready[1]);
	fa_scene_check(&scene);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forged),    cmocka_unit_test(test_other_words),
		cmocka_unit_test(test_scribbled), cmocka_unit_test(test_changed),
		cmocka_unit_test(test_killed),    cmocka_unit_test(test_stopped),
	};

	return cmocka_run_group_tests(tests, scene_start, scene_stop);
}
