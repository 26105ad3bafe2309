/* How the engine's thread waits: nothing is missed, and no processor is burnt. */
#include "common/clock.h"
#include "daemon/waiter.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ROUNDS 20000

static void test_look(void **state)
{
	struct fa_waiter waiter = { 0 };

	fa_waiter_wake(&waiter);
	fa_waiter_init(&waiter);
	assert_true(fa_waiter_look(&waiter)); /* it was woken before there was anybody */
	assert_false(fa_waiter_look(&waiter));
	fa_waiter_wake(&waiter);
	fa_waiter_wake(&waiter);
	/* Who was woken since the last look does not wait. */
	fa_waiter_wait(&waiter, FA_NS_NEVER);
	waiter.since_ns = 0;
	fa_waiter_poll(&waiter, FA_NS_NEVER);
	assert_true(fa_waiter_look(&waiter));
	assert_false(fa_waiter_look(&waiter));
}

struct pair {
	struct fa_waiter waiters[2];
	_Atomic unsigned int turn;
	bool polled;
};

static void play(struct pair *pair, unsigned int me)
{
	struct fa_waiter *mine = &pair->waiters[me];

	for (unsigned int i = me; i < ROUNDS; i += 2) {
		fa_waiter_expect(mine);
		for (;;) {
			(void)fa_waiter_look(mine);
			if (pair->turn == i)
				break;
			if (pair->polled)
				fa_waiter_poll(mine, FA_NS_NEVER);
			else
				fa_waiter_wait(mine, FA_NS_NEVER);
		}
		pair->turn = i + 1;
		fa_waiter_wake(&pair->waiters[!me]);
	}
}

static void *other(void *userdata)
{
	play(userdata, 1);
	return NULL;
}

/* A wake-up lost anywhere stops this, unless it is polled. */
static void ping_pong(bool polled, bool may_spin)
{
	struct pair pair = { .polled = polled };
	pthread_t thread;

	for (int i = 0; i < 2; i++) {
		fa_waiter_init(&pair.waiters[i]);
		pair.waiters[i].may_spin = may_spin;
	}
	assert_int_equal(pthread_create(&thread, NULL, other, &pair), 0);
	play(&pair, 0);
	pthread_join(thread, NULL);
	assert_int_equal(pair.turn, ROUNDS);
}

static void test_ping_pong(void **state)
{
	ping_pong(false, false);
	ping_pong(false, true);
}

static void test_ping_pong_polled(void **state)
{
	ping_pong(true, false);
	ping_pong(true, true);
}

static void test_pause(void **state)
{
	struct fa_waiter waiter = { 0 };
	uint64_t waited_ns, pause_ns;

	fa_waiter_init(&waiter);
	waiter.since_ns = 7 * FA_NS_PER_SEC;
	assert_int_equal(fa_waiter_pause_ns(&waiter, waiter.since_ns), 0);
	assert_int_equal(fa_waiter_pause_ns(&waiter, waiter.since_ns + 150 * FA_NS_PER_US), 0);
	for (waited_ns = 250 * FA_NS_PER_US; waited_ns < 100 * FA_NS_PER_SEC; waited_ns *= 2) {
		pause_ns = fa_waiter_pause_ns(&waiter, waiter.since_ns + waited_ns);
		assert_in_range(pause_ns, 1, FA_NS_PER_MS);
		assert_in_range(pause_ns, 1, waited_ns / 16);
		if (waited_ns / 16 > FA_NS_PER_MS)
			assert_int_equal(pause_ns, FA_NS_PER_MS);
	}
}

/* Where nothing is quick, little time is spent looking for it; one quick one and it is
 * looked for as before. */
static void test_slow_ones(void **state)
{
	struct fa_waiter waiter = { 0 };

	fa_waiter_init(&waiter);
	for (int i = 0; i < 10; i++) {
		waiter.since_ns = fa_now_ns() - FA_NS_PER_SEC;
		fa_waiter_came(&waiter);
	}
	assert_int_not_equal(fa_waiter_pause_ns(&waiter, waiter.since_ns + 25 * FA_NS_PER_US), 0);
	for (int i = 0; i < 1000; i++) {
		/* The machine may be slow; one of them is not. */
		fa_waiter_expect(&waiter);
		fa_waiter_came(&waiter);
	}
	assert_int_equal(fa_waiter_pause_ns(&waiter, waiter.since_ns + 25 * FA_NS_PER_US), 0);
}

/* A deadline ends a sleep between two looks, too. */
static void test_until(void **state)
{
	struct fa_waiter waiter = { 0 };
	uint64_t begin_ns, until_ns;

	fa_waiter_init(&waiter);
	(void)fa_waiter_look(&waiter);
	begin_ns = fa_now_ns();
	until_ns = begin_ns + 20 * FA_NS_PER_MS;
	while (fa_now_ns() < until_ns) {
		fa_waiter_wait(&waiter, until_ns);
		(void)fa_waiter_look(&waiter);
	}

	(void)fa_waiter_look(&waiter);
	waiter.since_ns = 0;
	begin_ns = fa_now_ns();
	fa_waiter_poll(&waiter, begin_ns);
	fa_waiter_poll(&waiter, FA_NS_NEVER);
	assert_true(fa_now_ns() < begin_ns + 30 * FA_NS_PER_SEC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_look),
		cmocka_unit_test(test_ping_pong),
		cmocka_unit_test(test_ping_pong_polled),
		cmocka_unit_test(test_pause),
		cmocka_unit_test(test_slow_ones),
		cmocka_unit_test(test_until),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
