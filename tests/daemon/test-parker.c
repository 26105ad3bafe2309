/* No wake-up is lost, and no CPU time is wasted. */
#include "common/clock.h"
#include "daemon/base/parker.h"
#include "tests/lib/pause.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#define ROUNDS 20000

static void test_wake_up_before_wait(void **state)
{
	struct fa_parker waiter = { 0 };

	fa_parker_wake(&waiter);
	fa_parker_init(&waiter);
	assert_true(fa_parker_consume(&waiter));
	assert_false(fa_parker_consume(&waiter));
	fa_parker_wake(&waiter);
	fa_parker_wake(&waiter);
	/* A wake-up since the last look ends the wait at once. */
	fa_parker_park(&waiter, FA_NS_NEVER);
	waiter.poll_since_ns = 0;
	fa_parker_poll(&waiter, fa_parker_poll_pause_ns(&waiter, fa_now_ns()), FA_NS_NEVER);
	assert_true(fa_parker_consume(&waiter));
	assert_false(fa_parker_consume(&waiter));
}

struct pair {
	struct fa_parker waiters[2];
	_Atomic unsigned int turn;
	unsigned int rounds;
	bool polled, prepared;
};

static void play(struct pair *pair, unsigned int me)
{
	struct fa_parker *mine = &pair->waiters[me];

	for (unsigned int i = me; i < pair->rounds; i += 2) {
		fa_parker_poll_begin(mine);
		for (;;) {
			(void)fa_parker_consume(mine);
			if (pair->turn == i)
				break;
			if (pair->polled)
				fa_parker_poll(mine, fa_parker_poll_pause_ns(mine, fa_now_ns()),
				               FA_NS_NEVER);
			else
				fa_parker_park(mine, FA_NS_NEVER);
		}
		if (pair->prepared)
			fa_parker_prewake(&pair->waiters[!me]);
		pair->turn = i + 1;
		fa_parker_wake(&pair->waiters[!me]);
	}
}

static void *other(void *userdata)
{
	play(userdata, 1);
	return NULL;
}

/*
 * Two threads wake each other in turn. After a lost wake-up the test does not end, unless it polls.
 */
static void ping_pong(bool polled, bool may_spin, bool prepared)
{
	/* With few processors, spinning in vain slows the others. */
	struct pair pair = { .rounds = prepared && may_spin ? ROUNDS / 10 : ROUNDS,
		             .polled = polled,
		             .prepared = prepared };
	pthread_t thread;

	for (int i = 0; i < 2; i++) {
		fa_parker_init(&pair.waiters[i]);
		pair.waiters[i].may_spin = may_spin;
	}
	assert_int_equal(pthread_create(&thread, NULL, other, &pair), 0);
	play(&pair, 0);
	pthread_join(thread, NULL);
	assert_int_equal(pair.turn, pair.rounds);
}

static void test_ping_pong(void **state)
{
	ping_pong(false, false, false);
	ping_pong(false, true, false);
	ping_pong(false, false, true);
	ping_pong(false, true, true);
}

static void test_ping_pong_polled(void **state)
{
	ping_pong(true, false, false);
	ping_pong(true, true, false);
	ping_pong(true, true, true);
}

/*
 * Two threads sleep on bells. Each rings the other's and rearms it before its own news, as a loop
 * does.
 */
struct bells {
	struct fa_parker waiters[2];
	int bells[2];
	_Atomic unsigned int turn;
};

static void play_bells(struct bells *bells, unsigned int me)
{
	struct fa_parker *mine = &bells->waiters[me];
	eventfd_t count;

	for (unsigned int i = me; i < ROUNDS / 10; i += 2) {
		for (;;) {
			(void)fa_parker_consume(mine);
			if (bells->turn == i)
				break;
			fa_parker_park(mine, FA_NS_NEVER);
		}
		if (i % 3)
			assert_int_equal(eventfd_write(bells->bells[!me], 1), 0);
		if (i % 5 == 0)
			fa_parker_prewake(&bells->waiters[!me]);
		if (i % 3)
			assert_int_equal(eventfd_read(bells->bells[!me], &count), 0);
		bells->turn = i + 1;
		fa_parker_wake(&bells->waiters[!me]);
	}
}

static void *other_bells(void *userdata)
{
	play_bells(userdata, 1);
	return NULL;
}

static void open_bell(struct fa_parker *waiter, int *ret_bell)
{
	fa_parker_init(waiter);
	waiter->may_spin = true;
	*ret_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	assert_true(*ret_bell >= 0);
	assert_int_equal(fa_parker_watch_fd(waiter, *ret_bell), 0);
}

static void test_ping_pong_bells(void **state)
{
	struct bells bells = { .turn = 0 };
	pthread_t thread;

	for (int i = 0; i < 2; i++)
		open_bell(&bells.waiters[i], &bells.bells[i]);
	assert_int_equal(pthread_create(&thread, NULL, other_bells, &bells), 0);
	play_bells(&bells, 0);
	pthread_join(thread, NULL);
	assert_int_equal(bells.turn, ROUNDS / 10);
	for (int i = 0; i < 2; i++) {
		fa_parker_deinit(&bells.waiters[i]);
		close(bells.bells[i]);
	}
}

struct sleeper {
	struct fa_parker waiter;
	_Atomic unsigned int n_waits, n_looks;
	atomic_bool over;
};

static void *sleep_until_over(void *userdata)
{
	struct sleeper *sleeper = userdata;

	while (!sleeper->over) {
		fa_parker_park(&sleeper->waiter, FA_NS_NEVER);
		sleeper->n_waits++;
		sleeper->n_looks += fa_parker_consume(&sleeper->waiter);
	}
	return NULL;
}

/* Only prepared, a parker wakes up, finds nothing, and sleeps again. */
static void test_prepare(void **state)
{
	struct sleeper sleeper = { 0 };
	pthread_t thread;

	fa_parker_init(&sleeper.waiter);
	sleeper.waiter.may_spin = true;
	assert_int_equal(pthread_create(&thread, NULL, sleep_until_over, &sleeper), 0);
	while (!sleeper.n_waits) {
		fa_parker_prewake(&sleeper.waiter);
		fa_test_pause_ns(FA_NS_PER_MS);
	}
	assert_int_equal(sleeper.n_looks, 0);
	sleeper.over = true;
	fa_parker_wake(&sleeper.waiter);
	pthread_join(thread, NULL);
	assert_int_equal(sleeper.n_looks, 1);

	/* No spinning, no false wake-ups. */
	sleeper.waiter.may_spin = false;
	fa_parker_prewake(&sleeper.waiter);
	assert_false(fa_parker_consume(&sleeper.waiter));
}

/* A bell wakes the sleeper once until it is read. */
static void test_bell(void **state)
{
	struct sleeper sleeper = { 0 };
	unsigned int n_waits;
	pthread_t thread;
	eventfd_t count;
	int bell;

	open_bell(&sleeper.waiter, &bell);
	assert_int_equal(pthread_create(&thread, NULL, sleep_until_over, &sleeper), 0);
	fa_test_quiet_ms(20);
	assert_int_equal(sleeper.n_waits, 0);
	assert_int_equal(eventfd_write(bell, 1), 0);
	for (uint64_t pause_ns = 0; !sleeper.n_waits;)
		fa_test_poll_pause(&pause_ns);
	fa_test_quiet_ms(100);
	assert_int_equal(sleeper.n_waits, 1);
	assert_int_equal(eventfd_read(bell, &count), 0);
	fa_parker_wake(&sleeper.waiter);
	for (uint64_t pause_ns = 0; !sleeper.n_looks;)
		fa_test_poll_pause(&pause_ns);
	fa_test_quiet_ms(20);
	assert_int_equal(sleeper.n_waits, 2);
	assert_int_equal(eventfd_write(bell, 1), 0);
	for (uint64_t pause_ns = 0; sleeper.n_waits < 3;)
		fa_test_poll_pause(&pause_ns);
	assert_int_equal(sleeper.n_looks, 1);
	/* Reading the bell rearms it. */
	assert_int_equal(eventfd_read(bell, &count), 0);
	fa_test_quiet_ms(20);
	while (sleeper.n_waits < 4) {
		fa_parker_prewake(&sleeper.waiter);
		fa_test_pause_ns(FA_NS_PER_MS);
	}
	fa_test_quiet_ms(20);
	n_waits = sleeper.n_waits;
	assert_int_equal(eventfd_write(bell, 1), 0);
	for (uint64_t pause_ns = 0; sleeper.n_waits <= n_waits;)
		fa_test_poll_pause(&pause_ns);
	assert_int_equal(sleeper.n_looks, 1);

	sleeper.over = true;
	fa_parker_wake(&sleeper.waiter);
	pthread_join(thread, NULL);
	fa_parker_deinit(&sleeper.waiter);
	close(bell);
}

/* A bell that rings in vain is ignored for a while. */
static void test_bell_in_vain(void **state)
{
	struct fa_parker waiter = { 0 };
	unsigned int n_heard = 0;
	int bell;

	open_bell(&waiter, &bell);
	assert_int_equal(eventfd_write(bell, 1), 0);
	for (int i = 0; i < 200; i++) {
		uint64_t begin_ns = fa_now_ns();

		(void)fa_parker_consume(&waiter);
		waiter.spin_ns = 0;
		fa_parker_park(&waiter, begin_ns + FA_NS_PER_MS);
		n_heard += waiter.watch_fired;
		waiter.watch_fired = false;
	}
	/* It heard 4 rings and ignored 64, twice; then it heard 4 more. */
	assert_int_equal(n_heard, 12);
	fa_parker_deinit(&waiter);
	close(bell);
}

static void test_pause(void **state)
{
	struct fa_parker waiter = { 0 };
	uint64_t waited_ns, pause_ns;

	fa_parker_init(&waiter);
	waiter.poll_since_ns = 7 * FA_NS_PER_SEC;
	assert_int_equal(fa_parker_poll_pause_ns(&waiter, waiter.poll_since_ns), 0);
	assert_int_equal(
		fa_parker_poll_pause_ns(&waiter, waiter.poll_since_ns + 150 * FA_NS_PER_US), 0);
	for (waited_ns = 250 * FA_NS_PER_US; waited_ns < 100 * FA_NS_PER_SEC; waited_ns *= 2) {
		pause_ns = fa_parker_poll_pause_ns(&waiter, waiter.poll_since_ns + waited_ns);
		assert_in_range(pause_ns, 1, FA_NS_PER_MS);
		assert_in_range(pause_ns, 1, waited_ns / 16);
		if (waited_ns / 16 > FA_NS_PER_MS)
			assert_int_equal(pause_ns, FA_NS_PER_MS);
	}
}

/* Slow works shorten polling, a quick one restores it. */
static void test_slow_works(void **state)
{
	struct fa_parker waiter = { 0 };

	fa_parker_init(&waiter);
	for (int i = 0; i < 10; i++) {
		waiter.poll_since_ns = fa_now_ns() - FA_NS_PER_SEC;
		fa_parker_poll_hit(&waiter);
	}
	assert_int_not_equal(
		fa_parker_poll_pause_ns(&waiter, waiter.poll_since_ns + 25 * FA_NS_PER_US), 0);
	/* Urgent work is polled for all the same. */
	fa_parker_poll_urgent(&waiter);
	assert_int_equal(
		fa_parker_poll_pause_ns(&waiter, waiter.poll_since_ns + 150 * FA_NS_PER_US), 0);
	waiter.poll_spin_ns = 0;
	for (int i = 0; i < 1000; i++) {
		fa_parker_poll_begin(&waiter);
		fa_parker_poll_hit(&waiter);
	}
	assert_int_equal(fa_parker_poll_pause_ns(&waiter, waiter.poll_since_ns + 25 * FA_NS_PER_US),
	                 0);
}

static void test_until(void **state)
{
	struct fa_parker waiter = { 0 };
	uint64_t begin_ns, until_ns;

	fa_parker_init(&waiter);
	(void)fa_parker_consume(&waiter);
	begin_ns = fa_now_ns();
	until_ns = begin_ns + 20 * FA_NS_PER_MS;
	while (fa_now_ns() < until_ns) {
		fa_parker_park(&waiter, until_ns);
		(void)fa_parker_consume(&waiter);
	}

	(void)fa_parker_consume(&waiter);
	waiter.poll_since_ns = 0;
	begin_ns = fa_now_ns();
	fa_parker_poll(&waiter, fa_parker_poll_pause_ns(&waiter, begin_ns), begin_ns);
	fa_parker_poll(&waiter, fa_parker_poll_pause_ns(&waiter, fa_now_ns()), FA_NS_NEVER);
	assert_true(fa_now_ns() < begin_ns + 30 * FA_NS_PER_SEC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wake_up_before_wait),
		cmocka_unit_test(test_ping_pong),
		cmocka_unit_test(test_ping_pong_polled),
		cmocka_unit_test(test_ping_pong_bells),
		cmocka_unit_test(test_prepare),
		cmocka_unit_test(test_bell),
		cmocka_unit_test(test_bell_in_vain),
		cmocka_unit_test(test_pause),
		cmocka_unit_test(test_slow_works),
		cmocka_unit_test(test_until),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
