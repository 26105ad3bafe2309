/*
 * Tests random requests: FAD_TEST_CASES of them (default 150), from the seed FAD_TEST_SEED
 * (default: the time), which is printed.
 */
#include "tests/kernels/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

static int64_t pick(int64_t low, int64_t high)
{
	return low + (int64_t)problem_random((uint64_t)(high - low + 1));
}

/* Returns a length: mostly small, sometimes around the sizes of tiles and rounds. */
static int64_t pick_length(void)
{
	switch (problem_random(6)) {
	case 0:
		return pick(0, 3);
	case 1:
		return pick(120, 300);
	case 2:
		return pick(1, 8) * 16 + pick(-1, 1);
	default:
		return pick(1, 90);
	}
}

static void test_random(void **state)
{
	const char *cases = getenv("FAD_TEST_CASES"), *given = getenv("FAD_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	int n = cases ? atoi(cases) : 150;

	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < n; i++) {
		struct problem_spec spec = { .dtype = FA_ATTENTION_F32 };

		problem_seed(seed + (uint64_t)i);
		spec.dtype = (enum fa_attention_dtype)pick(1, 3);
		spec.batch = (int32_t)pick(1, 4);
		spec.kv_heads = (int32_t)pick(1, 3);
		spec.heads = spec.kv_heads * (int32_t)(problem_one_in(2) ? 1 : pick(2, 9));
		spec.head_dim = (int32_t)(8 * (problem_one_in(4) ? pick(1, 32) : pick(1, 10)));
		spec.head_dim_v = problem_one_in(2)
		                          ? spec.head_dim
		                          : (int32_t)(8 * (problem_one_in(6) ? pick(1, 64)
		                                                             : pick(1, 10)));
		spec.n_q = pick_length();
		spec.n_k = pick_length();
		spec.ragged = problem_one_in(3);
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.lengths_q[b] = (uint32_t)pick_length();
			spec.lengths_k[b] = (uint32_t)pick_length();
		}
		spec.causal = problem_one_in(2);
		spec.left_1 = problem_one_in(3) ? 1 + pick_length() : 0;
		spec.right_1 = problem_one_in(3) ? 1 + pick_length() : 0;
		spec.chunk = problem_one_in(4) ? pick(1, 100) : 0;
		spec.prefixed = problem_one_in(4);
		for (int32_t b = 0; b < spec.batch; b++)
			spec.prefix[b] = problem_one_in(4) ? 0 : (uint32_t)pick_length();
		spec.softcap = problem_one_in(4) ? (float)pick(1, 60) : 0;
		spec.alibi = problem_one_in(4);
		spec.sinks = problem_one_in(4);
		spec.no_lse = problem_one_in(8);
		spec.layout = (enum problem_layout)pick(0, PROBLEM_LAYOUTS - 1);
		/* Keep the reference's share of the time small. */
		while (spec.n_q * spec.n_k * spec.heads * spec.batch > 100000 && !spec.ragged) {
			if (spec.batch > 1)
				spec.batch--;
			else if (spec.n_q > spec.n_k)
				spec.n_q /= 2;
			else
				spec.n_k /= 2;
		}
		if (spec.ragged && spec.heads > 4)
			spec.heads = spec.kv_heads;
		problem_test(&spec);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
