/*
 * common/ring.c in every order of both ends' accesses: messages arrive in order, and nobody sleeps
 * for ever. The model (model/model.h) must also find three planted faults: a non-atomic exchange,
 * no second look before sleeping, a word written too late.
 */
#include "common/ring.h"
#include "tests/unit/model/common/memory.h"
#include "tests/unit/model/model.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* Two messages of 8 bytes. */
#define BYTES 32
#define MESSAGES 3

#define BELL 0
#define WAKE 1

/* The requests that publisher @i has completed. */
static _Atomic uint64_t *completed(int i)
{
	return (_Atomic uint64_t *)&fa_model_memory[900 + i];
}

static bool skips_last_look; /* fault: do not look again before sleeping */
static bool wakes_too_early; /* fault: wake the reader before the word is written */

/* ---- one client, one daemon */

static void await(uint64_t value)
{
	struct fa_ring_producer ring;

	fa_ring_producer_init(&ring, fa_model_memory, BYTES);
	while (fa_memory_load64(completed(0)) < value) {
		fa_ring_arm(&ring);
		if (skips_last_look || fa_memory_load64(completed(0)) < value)
			fa_model_wait(WAKE);
		fa_ring_disarm(&ring);
	}
}

static void client(void)
{
	struct fa_ring_producer ring;

	fa_ring_producer_init(&ring, fa_model_memory, BYTES);
	for (uint64_t i = 1; i <= MESSAGES; ++i) {
		uint64_t message = i * 0x0101010101010101;

		while (fa_ring_put(&ring, &message, sizeof(message)) == -EAGAIN) {
			fa_ring_arm_room(&ring);
			if (skips_last_look || !fa_ring_has_room(&ring, sizeof(message)))
				fa_model_wait(WAKE);
		}
		if (fa_ring_needs_doorbell(&ring))
			fa_model_signal(BELL);
	}
	await(MESSAGES);
}

static void daemon_end(struct fa_ring_consumer *ring, uint64_t value)
{
	if (!wakes_too_early)
		fa_memory_store64(completed(0), value);
	if (fa_ring_needs_wakeup(ring->words))
		fa_model_signal(WAKE);
	if (wakes_too_early)
		fa_memory_store64(completed(0), value);
}

static void daemon_side(void)
{
	struct fa_ring_consumer ring;
	uint64_t message, taken = 0;
	const char *wrong;
	size_t length;

	/* The daemon may set up the ring before the client. */
	fa_ring_consumer_init(&ring, fa_model_memory, BYTES);
	while (taken < MESSAGES) {
		int r = fa_ring_take(&ring, &message, sizeof(message), &length, &wrong);

		if (r == 0) {
			++taken;
			fa_model_check(length == sizeof(message) &&
			               message == taken * 0x0101010101010101);
			if (fa_ring_needs_room_wakeup(&ring))
				fa_model_signal(WAKE);
			daemon_end(&ring, taken);
			continue;
		}
		fa_model_check(r == -EAGAIN);
		if (r != -EAGAIN)
			return;
		if (fa_ring_sleep(&ring)) {
			fa_model_wait(BELL);
			fa_ring_awake(&ring);
		}
	}
}

/* fa_ring_sleep() without its last look. */
static void daemon_without_last_look(void)
{
	struct fa_ring_consumer ring;
	uint64_t message, taken = 0;
	const char *wrong;
	size_t length;

	fa_ring_consumer_init(&ring, fa_model_memory, BYTES);
	while (taken < MESSAGES) {
		if (fa_ring_take(&ring, &message, sizeof(message), &length, &wrong) == 0) {
			++taken;
			if (fa_ring_needs_room_wakeup(&ring))
				fa_model_signal(WAKE);
			daemon_end(&ring, taken);
			continue;
		}
		(void)fa_memory_exchange32(&ring.words->asleep, 1);
		fa_model_wait(BELL);
		fa_ring_awake(&ring);
	}
}

static struct fa_model_result run(const char *what, const struct fa_model *model)
{
	struct fa_model_result result;

	fa_model_run(model, &result);
	printf("%s: %llu states, %llu ends, %llu lost, %llu broken\n", what,
	       (unsigned long long)result.states, (unsigned long long)result.ends,
	       (unsigned long long)result.lost, (unsigned long long)result.broken);
	return result;
}

static void test_ring(void **state)
{
	const struct fa_model model = { .threads = { client, daemon_side }, .n_threads = 2 };
	struct fa_model_result result = run("ring", &model);

	assert_int_equal(result.lost, 0);
	assert_int_equal(result.broken, 0);
	assert_true(result.ends > 0);
	assert_true(result.states > 10000);
}

static void test_finds_non_atomic_exchange(void **state)
{
	const struct fa_model model = {
		.threads = { client, daemon_side }, .n_threads = 2, .first = true, .lax = true
	};

	assert_true(run("lax exchanges", &model).lost > 0);
}

static void test_finds_missing_last_look(void **state)
{
	const struct fa_model ends[] = {
		{ .threads = { client, daemon_without_last_look }, .n_threads = 2, .first = true },
		{ .threads = { client, daemon_side }, .n_threads = 2, .first = true },
	};

	assert_true(run("hasty daemon", &ends[0]).lost > 0);
	skips_last_look = true;
	assert_true(run("hasty client", &ends[1]).lost > 0);
	skips_last_look = false;
}

static void test_finds_early_wake_up(void **state)
{
	const struct fa_model model = { .threads = { client, daemon_side },
		                        .n_threads = 2,
		                        .first = true };

	wakes_too_early = true;
	assert_true(run("late news", &model).lost > 0);
	wakes_too_early = false;
}

/* ---- two threads of the daemon that complete requests */

static void publish(int i)
{
	struct fa_ring_words *words = (struct fa_ring_words *)fa_model_memory;

	for (uint64_t value = 1; value <= 2; ++value) {
		fa_memory_store64(completed(i), value);
		if (fa_ring_needs_wakeup(words))
			fa_model_signal(WAKE);
	}
}

static void loop(void)
{
	publish(0);
}

static void engine(void)
{
	publish(1);
}

static bool both_are(uint64_t value)
{
	return fa_memory_load64(completed(0)) >= value && fa_memory_load64(completed(1)) >= value;
}

static void sleeper(void)
{
	struct fa_ring_producer ring;

	fa_ring_producer_init(&ring, fa_model_memory, BYTES);
	for (uint64_t value = 1; value <= 2; ++value) {
		while (!both_are(value)) {
			fa_ring_arm(&ring);
			if (!both_are(value))
				fa_model_wait(WAKE);
			fa_ring_disarm(&ring);
		}
	}
}

static void test_two_publishers(void **state)
{
	const struct fa_model model = { .threads = { sleeper, loop, engine }, .n_threads = 3 };
	const struct fa_model lax = {
		.threads = { sleeper, loop, engine }, .n_threads = 3, .first = true, .lax = true
	};
	struct fa_model_result result = run("two publishers", &model);

	assert_int_equal(result.lost, 0);
	assert_true(result.ends > 0);
	assert_true(run("two publishers, lax exchanges", &lax).lost > 0);
}

/* ---- an event loop that arms the wake-up before requests are sent, and in each round */

static void watcher(void)
{
	struct fa_ring_producer ring;

	fa_ring_producer_init(&ring, fa_model_memory, BYTES);
	if (!fa_ring_is_armed(&ring))
		fa_ring_arm(&ring);
	for (;;) {
		if (both_are(2))
			return;
		fa_model_wait(WAKE);
		if (!fa_ring_is_armed(&ring))
			fa_ring_arm(&ring);
	}
}

static void test_watcher(void **state)
{
	const struct fa_model model = { .threads = { watcher, loop, engine }, .n_threads = 3 };
	struct fa_model_result result = run("event loop", &model);

	assert_int_equal(result.lost, 0);
	assert_true(result.ends > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ring),
		cmocka_unit_test(test_finds_non_atomic_exchange),
		cmocka_unit_test(test_finds_missing_last_look),
		cmocka_unit_test(test_finds_early_wake_up),
		cmocka_unit_test(test_two_publishers),
		cmocka_unit_test(test_watcher),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
