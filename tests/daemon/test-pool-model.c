/* Random operations on a pool, compared with the model. */
#include "tests/daemon/pool-runner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define ROUNDS 50000
#define ROUNDS_LONG 1000000

static uint64_t choose_seed(void)
{
	const char *seed = getenv("FAD_TEST_SEED");

	return seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
}

static void run_random(bool runs)
{
	uint64_t rounds = fa_test_long() ? ROUNDS_LONG : ROUNDS, seed = choose_seed();
	struct fa_test_random random = { seed };
	struct runner *runner = calloc(1, sizeof(*runner));
	struct fa_pool_info info;
	struct op op;

	assert_non_null(runner);
	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	runner_init(runner, runs);
	for (uint64_t i = 0; i < rounds; i++) {
		runner_choose(runner, &random, &op);
		runner_do(runner, &op);
		if (i % 50 == 49)
			runner_verify(runner);
		if (i % 1000 == 999)
			runner_settle(runner);
		if (i % 5000 == 4999) {
			runner_settle(runner);
			runner_reopen(runner);
			runner_verify(runner);
		}
	}
	runner_settle(runner);
	fa_pool_get_info(runner->scene.pool, &info);

	for (int i = 0; i < OPS; i++) {
		printf("operation %d: %llu done, %llu refused\n", i,
		       (unsigned long long)runner->n_done[i],
		       (unsigned long long)runner->n_failed[i]);
		assert_true(runner->n_done[i] > 0);
	}
	printf("%llu attached\n", (unsigned long long)runner->n_attached);
	assert_true(runner->n_attached > 0);
	runner_deinit(runner);
	free(runner);
}

static void test_random(void **state)
{
	run_random(false);
}

static void test_random_runs(void **state)
{
	run_random(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_random_runs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
