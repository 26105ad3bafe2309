/* When a thread spins, and how many processors it may use. */
#include "common/backoff.h"
#include "common/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SKIPS 10

static void fail_spins(struct fa_backoff *backoff, int n)
{
	while (n--) {
		assert_true(fa_backoff_next(backoff));
		fa_backoff_failed(backoff, SKIPS);
	}
}

static void test_failures(void **state)
{
	struct fa_backoff backoff = {};

	for (int round = 0; round < 3; ++round) {
		fail_spins(&backoff, FA_BACKOFF_FAILURES);
		for (int i = 0; i < SKIPS; ++i) {
			assert_false(fa_backoff_may_spin(&backoff));
			assert_false(fa_backoff_may_spin(&backoff)); /* not counted */
			assert_false(fa_backoff_next(&backoff));
		}
		assert_true(fa_backoff_may_spin(&backoff));
	}
}

static void test_success(void **state)
{
	struct fa_backoff backoff = {};

	for (int round = 0; round < 3; ++round) {
		fail_spins(&backoff, FA_BACKOFF_FAILURES - 1);
		fa_backoff_succeeded(&backoff);
	}
	assert_true(fa_backoff_next(&backoff));
	fail_spins(&backoff, FA_BACKOFF_FAILURES);
	assert_false(fa_backoff_next(&backoff));

	/* An earlier spin's success does not end the back-off. */
	fa_backoff_succeeded(&backoff);
	for (int i = 1; i < SKIPS; ++i)
		assert_false(fa_backoff_next(&backoff));
	assert_true(fa_backoff_next(&backoff));
}

static void test_cpu_count(void **state)
{
	cpu_set_t all, one;
	int cpu = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	assert_int_equal(fa_cpu_count(), CPU_COUNT(&all));
	while (!CPU_ISSET(cpu, &all))
		++cpu;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(fa_cpu_count(), 1);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
	assert_int_equal(fa_cpu_count(), CPU_COUNT(&all));
	fa_cpu_spin_pause(true);
	fa_cpu_spin_pause(false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_success),
		cmocka_unit_test(test_cpu_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
