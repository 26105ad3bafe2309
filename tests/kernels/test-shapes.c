/*
 * The shapes that FlashAttention tests, with every mask, type and grouping of heads.
 */
#include "tests/kernels/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
	int64_t n_q, n_k;
} shapes[] = {
	{ 1, 1 },   { 239, 1 }, { 799, 3 },     { 113, 203 }, { 511, 1 },   { 3, 513 },
	{ 1, 700 }, { 64, 64 }, { 1023, 1024 }, { 128, 217 }, { 217, 128 }, { 5, 0 },
};

#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void test_masks(void **state)
{
	static const struct {
		bool causal;
		int64_t left_1, right_1;
	} masks[] = {
		{ false, 0, 0 },  { true, 0, 0 },   { false, 1, 1 },  { false, 33, 8 },
		{ false, 0, 65 }, { false, 65, 0 }, { true, 129, 0 }, { true, 8, 100 },
	};

	for (size_t i = 0; i < N_SHAPES; i++) {
		for (size_t m = 0; m < sizeof(masks) / sizeof(masks[0]); m++) {
			struct problem_spec spec = {
				.dtype = (enum fa_attention_dtype)(1 + (i + m) % 3),
				.batch = 1,
				.heads = 1,
				.kv_heads = 1,
				.head_dim = 32,
				.head_dim_v = 32,
				.n_q = shapes[i].n_q,
				.n_k = shapes[i].n_k,
				.causal = masks[m].causal,
				.left_1 = masks[m].left_1,
				.right_1 = masks[m].right_1,
				.layout = (enum problem_layout)((i + m) % PROBLEM_LAYOUTS),
			};

			/* The largest shapes cost most of the time; three masks suffice. */
			if (spec.n_q > 1000 && m > 2)
				continue;
			problem_test(&spec);
		}
	}
}

static void test_variants(void **state)
{
	for (size_t i = 0; i < N_SHAPES; i++) {
		for (unsigned int variant = 1; variant < 8; variant++) {
			struct problem_spec spec = {
				.dtype = (enum fa_attention_dtype)(1 + (i + variant) % 3),
				.batch = 1,
				.heads = 2,
				.kv_heads = 1 + i % 2,
				.head_dim = 16,
				.head_dim_v = 24,
				.n_q = shapes[i].n_q,
				.n_k = shapes[i].n_k,
				.causal = variant % 2 == 0,
				.softcap = variant & 1 ? 1.5f : 0,
				.alibi = variant & 2,
				.sinks = variant & 4,
				.layout = (enum problem_layout)(variant % PROBLEM_LAYOUTS),
			};

			if (spec.n_q > 1000)
				spec.n_q = 300;
			problem_test(&spec);
		}
	}
}

static void test_groups(void **state)
{
	for (int32_t group = 1; group <= 16; group++) {
		for (int n = 0; n < 3; n++) {
			struct problem_spec spec = {
				.dtype = (enum fa_attention_dtype)(1 + (group + n) % 3),
				.batch = 2,
				.heads = group * (n == 0 ? 1 : 2),
				.kv_heads = n == 0 ? 1 : 2,
				.head_dim = 24,
				.head_dim_v = 16,
				.n_q = n == 0   ? 1
				       : n == 1 ? 3
				                : 19,
				.n_k = n == 0 ? 150 : 61,
				.causal = n > 0,
				.alibi = n == 1,
				.layout = (enum problem_layout)(group % PROBLEM_LAYOUTS),
			};

			problem_test(&spec);
		}
	}
}

static void test_model_shapes(void **state)
{
	static const struct {
		int32_t heads, kv_heads, head_dim;
		int64_t n_q, n_k;
		bool causal;
	} models[] = {
		{ 8, 2, 128, 70, 300, true }, { 4, 4, 64, 257, 257, true },
		{ 8, 1, 128, 1, 1000, true }, { 2, 2, 256, 130, 140, false },
		{ 32, 4, 64, 2, 400, true },  { 2, 1, 128, 256, 256, false },
	};

	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++) {
			struct problem_spec spec = {
				.dtype = (enum fa_attention_dtype)dtype,
				.batch = 1,
				.heads = models[i].heads,
				.kv_heads = models[i].kv_heads,
				.head_dim = models[i].head_dim,
				.head_dim_v = models[i].head_dim,
				.n_q = models[i].n_q,
				.n_k = models[i].n_k,
				.causal = models[i].causal,
			};

			problem_test(&spec);
		}
	}
}

/* Enough heads and sequences that a tile takes several heads on any machine. */
static void test_decode(void **state)
{
	for (unsigned int which = 0; which < 9; which++) {
		struct problem_spec spec = {
			.dtype = (enum fa_attention_dtype)(1 + which % 3),
			.batch = 16,
			.heads = which < 3 ? 19 : 57,
			.kv_heads = 19,
			.head_dim = 16 + 24 * (int32_t)(which % 2),
			.head_dim_v = 24,
			.n_q = 1 + which % 2,
			.n_k = 67,
			.causal = which % 2,
			.alibi = which == 2 || which == 7,
			.sinks = which == 4 || which == 7,
			.left_1 = which == 5 ? 40 : 0,
			.softcap = which == 6 ? 2 : 0,
			.ragged = which > 5,
			.layout = (enum problem_layout)((which / 3 + which) % PROBLEM_LAYOUTS),
		};

		for (int32_t b = 0; b < spec.batch; b++) {
			spec.lengths_q[b] = (uint32_t)b % 3;
			spec.lengths_k[b] = (uint32_t)(b * 7 % 90);
		}
		problem_test(&spec);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_masks),  cmocka_unit_test(test_variants),
		cmocka_unit_test(test_groups), cmocka_unit_test(test_model_shapes),
		cmocka_unit_test(test_decode),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
