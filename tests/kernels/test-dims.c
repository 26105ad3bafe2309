/*
 * Tests every head dim, with V's dim equal, smaller and larger.
 */
#include "tests/kernels/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Few rows take one kernel, many rows take the other. */
static void test_dim(int32_t dim, int32_t dim_v, int which)
{
	struct problem_spec spec = {
		.dtype = (enum fa_attention_dtype)(1 + which % 3),
		.batch = 1,
		.heads = 1,
		.kv_heads = 1,
		.head_dim = dim,
		.head_dim_v = dim_v,
		.n_q = 3 + which % 4,
		.n_k = 23,
		.causal = which % 2,
		.layout = (enum problem_layout)(which % PROBLEM_LAYOUTS),
	};

	problem_test(&spec);
	spec.n_q = 20 + which % 40;
	problem_test(&spec);
}

static void test_equal_dims(void **state)
{
	for (int32_t dim = 8; dim <= 512; dim += dim < 256 ? 8 : 32) {
		for (int which = 0; which < 3; which++)
			test_dim(dim, dim, dim / 8 + which);
	}
}

static void test_other_dims_of_v(void **state)
{
	for (int32_t dim = 8; dim <= 512; dim += 8) {
		test_dim(dim <= 256 ? 264 - dim : 64, dim, dim / 8);
		test_dim(dim <= 256 ? dim : 192, 520 - dim, dim / 8 + 1);
	}
}

/* Dims around the kernels' constants: the narrow stride of K, the largest dims. */
static void test_wide_dims(void **state)
{
	static const int32_t dims[] = { 248, 264, 504, 512, 520, 528, 568, 576 };

	for (int i = 0; i < 8; i++) {
		for (int which = 0; which < 3; which++) {
			test_dim(dims[i], 512, i + which);
			test_dim(dims[i], 128 + 8 * i, i + which + 1);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equal_dims),
		cmocka_unit_test(test_other_dims_of_v),
		cmocka_unit_test(test_wide_dims),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
