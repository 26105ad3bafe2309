/*
 * Attention over pages on the CPU: page sizes, shapes at which such kernels have failed,
 * every feature, trees, and requests drawn at random (FAD_TEST_CASES of them, from the seed
 * FAD_TEST_SEED).
 */
#include "tests/kernels/paged-problem.h"
#include "tests/kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const struct paged_spec usual = {
	.dtype = FA_ATTENTION_BF16,
	.batch = 3,
	.heads = 4,
	.kv_heads = 2,
	.head_dim = 64,
	.head_dim_v = 64,
	.page_tokens = 64,
	.n_new = { 1, 5, 33 },
	.lengths = { 132, 18, 163 },
	.causal = true,
};

static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_F32, FA_ATTENTION_F16,
	                                          FA_ATTENTION_BF16 };

static void test_pages(void **state)
{
	static const int32_t pages[] = { 16, 32, 48, 64, 128, 256 };

	for (size_t p = 0; p < sizeof(pages) / sizeof(pages[0]); p++) {
		for (size_t d = 0; d < 3; d++) {
			struct paged_spec spec = usual;

			spec.page_tokens = pages[p];
			spec.dtype = dtypes[d];
			spec.layer_major = p % 2;
			paged_test(&spec);
		}
	}
}

/* (1,1328), (5,18), (129,463) in one batch, with splits along the keys. */
static void test_mixed(void **state)
{
	struct paged_spec spec = usual;

	spec.n_new[2] = 129;
	spec.lengths[0] = 1328;
	spec.lengths[2] = 463;
	for (size_t d = 0; d < 3; d++) {
		spec.dtype = dtypes[d];
		spec.page_tokens = 16 << d;
		paged_test(&spec);
	}
}

static void test_long(void **state)
{
	struct paged_spec spec = usual;

	spec.n_new[2] = 17;
	spec.lengths[0] = 5003; /* few rows: five splits */
	spec.lengths[2] = 4500; /* many rows: two splits */
	spec.page_tokens = 48;
	spec.sinks = true;
	paged_test(&spec);
	spec.left_1 = 1500;
	spec.dtype = FA_ATTENTION_F32;
	paged_test(&spec);
	spec.heads = 12 * spec.kv_heads;
	spec.dtype = FA_ATTENTION_BF16;
	paged_test(&spec);
}

static void test_empty(void **state)
{
	struct paged_spec spec = usual;

	spec.batch = 6;
	spec.n_new[0] = 0, spec.lengths[0] = 100;
	spec.n_new[1] = 1, spec.lengths[1] = 0;
	spec.n_new[2] = 40, spec.lengths[2] = 0;
	spec.n_new[3] = 20, spec.lengths[3] = 7;
	spec.n_new[4] = 1, spec.lengths[4] = 64, spec.first[4] = 64;
	spec.n_new[5] = 0, spec.lengths[5] = 0;
	paged_test(&spec);
	spec.sinks = true;
	paged_test(&spec);
}

static void test_dropped(void **state)
{
	struct paged_spec spec = usual;

	spec.lengths[0] = 1400;
	spec.first[0] = 1100;
	spec.first[1] = 30;
	spec.first[2] = 128;
	spec.lengths[1] = 500;
	spec.batch = 4;
	spec.n_new[3] = 3;
	spec.lengths[3] = 600;
	spec.first[3] = 550; /* its table would begin before 0, modulo 2^32 */
	for (int32_t page = 16; page <= 256; page *= 2) {
		spec.page_tokens = page;
		spec.causal = page != 32;
		paged_test(&spec);
		spec.dtype = FA_ATTENTION_F16;
	}
}

static void test_features(void **state)
{
	struct paged_spec spec = usual;

	for (int feature = 0; feature < 9; feature++) {
		spec = usual;
		spec.dtype = dtypes[feature % 3];
		spec.gaps = (feature + feature / 3) % 3;
		switch (feature) {
		case 0:
			spec.causal = false;
			break;
		case 1:
			spec.left_1 = 1 + 20;
			break;
		case 2:
			spec.causal = false;
			spec.left_1 = 1 + 10;
			spec.right_1 = 1 + 3;
			break;
		case 3:
			spec.softcap = 5;
			break;
		case 4:
			spec.alibi = true;
			break;
		case 5:
			spec.sinks = true;
			break;
		case 6:
			spec.no_lse = true;
			break;
		case 7:
			spec.scale = -0.2f;
			break;
		default:
			spec.softcap = 20;
			spec.alibi = spec.sinks = true;
			spec.left_1 = 1 + 40;
		}
		paged_test(&spec);
	}
}

static void test_dims(void **state)
{
	static const int32_t dims[][2] = { { 8, 8 },     { 40, 72 },   { 128, 128 },
		                           { 256, 256 }, { 192, 128 }, { 64, 512 } };

	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
		struct paged_spec spec = usual;

		spec.head_dim = dims[i][0];
		spec.head_dim_v = dims[i][1];
		spec.dtype = dtypes[i % 3];
		paged_test(&spec);
	}
}

static void test_groups(void **state)
{
	static const int32_t groups[] = { 1, 3, 5, 6, 7, 8, 16 };

	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		struct paged_spec spec = usual;

		spec.heads = groups[i] * spec.kv_heads;
		spec.dtype = dtypes[i % 3];
		paged_test(&spec);
	}
}

static void test_v_in_k(void **state)
{
	for (size_t d = 0; d < 3; d++) {
		struct paged_spec spec = usual;

		spec.v_in_k = true;
		spec.head_dim = 96;
		spec.heads = 16;
		spec.kv_heads = 1;
		spec.dtype = dtypes[d];
		paged_test(&spec);
	}
}

/* As MLA and Gemma 4: one KV head and many query heads, one and two new tokens, extends, dropped
 * tokens, a tree; V the front of K, or not. */
static void test_wide(void **state)
{
	static const int32_t heads[] = { 16, 128, 3, 64, 8, 1 };

	for (int i = 0; i < 12; i++) {
		struct paged_spec spec = usual;

		spec.v_in_k = i % 4 != 3;
		spec.head_dim = i % 4 == 1 ? 512 : 576;
		spec.head_dim_v = 512;
		spec.heads = heads[i % 6];
		spec.kv_heads = 1;
		spec.n_new[0] = 1 + (uint32_t)i % 2;
		spec.n_new[1] = 1;
		spec.n_new[2] = i % 3 ? 5 : 0;
		spec.lengths[0] = i % 6 == 2 ? 1500 : 132;
		spec.first[2] = i % 5 == 4 ? 70 : 0;
		spec.tree = i == 7;
		spec.dtype = dtypes[i / 2 % 3];
		paged_test(&spec);
	}
}

static void test_trees(void **state)
{
	for (int i = 0; i < 6; i++) {
		struct paged_spec spec = usual;

		spec.tree = true;
		spec.n_new[0] = 2 + (uint32_t)i % 3; /* few rows */
		spec.n_new[2] = 33 + 20 * (uint32_t)i;
		spec.dtype = dtypes[i % 3];
		spec.head_dim = spec.head_dim_v = 32;
		if (i >= 2)
			spec.left_1 = 1 + 17 * i;
		if (i >= 4)
			spec.alibi = spec.sinks = true;
		if (i == 5)
			spec.softcap = 10;
		paged_test(&spec);
	}
}

/* A sequence's result does not depend on what else is in the batch. */
static void test_alone(void **state)
{
	const struct fa_cpu_isa *isa = problem_isas()[0];
	struct paged_problem problem;
	struct paged_spec spec = usual;
	size_t bytes;
	char *together;

	spec.batch = 4;
	spec.n_new[3] = 1;
	spec.lengths[3] = 2100;
	paged_init(&problem, &spec);
	paged_run(isa, &problem.request);
	bytes = (size_t)problem.request.attention.out.stride_token * 2;
	together = malloc(problem.out_bytes);
	memcpy(together, problem.out, problem.out_bytes);
	memset(problem.out, 0xff, problem.out_bytes);

	/* The last sequence alone: its token becomes row 0. */
	problem.cu_new[1] = 1;
	problem.spec.lengths[0] = problem.spec.lengths[3];
	problem.before[0] = problem.before[3];
	problem.table_start[0] = problem.table_start[3];
	problem.step.batch = 1;
	problem.request.attention.q.data = (char *)problem.q + (problem.out_bytes - bytes);
	paged_run(isa, &problem.request);
	assert_memory_equal(problem.out, together + problem.out_bytes - bytes, bytes);
	free(together);
	paged_deinit(&problem);
}

/* Compares results that may differ by rounding, as weights may be rounded in one tiling and not
 * in another. */
static void assert_close(const void *a, const void *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		double x = reference_get(FA_ATTENTION_BF16, a, (int64_t)i);
		double y = reference_get(FA_ATTENTION_BF16, b, (int64_t)i);

		if (!(fabs(x - y) <= 0.02))
			fail_msg("element %zu is %g, was %g", i, x, y);
	}
}

/* Keys that a row does not see never change it. */
static void test_hidden(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (int tree = 0; tree < 2; tree++) {
		struct paged_spec spec = usual;
		struct paged_problem problem;

		spec.tree = tree;
		spec.n_new[0] = 2;
		paged_init(&problem, &spec);
		for (size_t i = 0; isas[i]; i++) {
			const struct fa_paged_attention *p = &problem.request.attention;
			size_t bytes = (size_t)p->out.stride_token * 2;

			for (int32_t b = 0; b < 3; b += 2) {
				size_t rows = (spec.n_new[b] - 1) * bytes;
				char *first = (char *)problem.out + problem.cu_new[b] * bytes;
				char *before = malloc(rows + 1);
				int64_t last = (int64_t)spec.lengths[b] - 1;
				char k[128], v[128];

				paged_run(isas[i], &problem.request);
				memcpy(before, first, rows);
				for (int32_t h = 0; h < 2; h++) {
					memcpy(k, paged_k(&problem, 1, b, last, h), 128);
					memcpy(v, paged_v(&problem, 1, b, last, h), 128);
					memset(paged_k(&problem, 1, b, last, h), 0xff, 128);
					memset(paged_v(&problem, 1, b, last, h), 0xff, 128);
					paged_run(isas[i], &problem.request);
					assert_close(first, before, rows / 2);
					memcpy(paged_k(&problem, 1, b, last, h), k, 128);
					memcpy(paged_v(&problem, 1, b, last, h), v, 128);
				}
				free(before);
			}
		}
		paged_deinit(&problem);
	}
}

/* Infinities and NaNs in K and V, at tokens that only some rows see, with windows, causal rows,
 * dropped pages and trees: with few rows, many, and splits. */
static void test_broken(void **state)
{
	for (int i = 0; i < 24; i++) {
		struct paged_spec spec = usual;

		spec.dtype = dtypes[i % 3];
		spec.page_tokens = 16 << i % 5;
		spec.broken = 1 + i % 4;
		spec.n_new[0] = 1 + (uint32_t)i % 4;
		spec.n_new[2] = i % 2 ? 70 : 33;
		spec.lengths[0] = i % 4 == 3 ? 1500 : 132;
		spec.first[2] = i % 5 == 0 ? 61 : 0;
		spec.causal = i % 6 != 5;
		spec.left_1 = i % 3 == 1 ? 1 + 7 * i : 0;
		spec.right_1 = i % 6 == 5 ? 3 : 0;
		spec.tree = i >= 14;
		spec.v_in_k = i % 8 == 7;
		spec.softcap = i % 9 == 4 ? 20 : 0;
		spec.alibi = i % 7 == 3;
		spec.sinks = i % 4 == 1;
		paged_test(&spec);
	}
}

static void test_stop(void **state)
{
	const bool stop = true;
	struct paged_problem problem;
	void *workspace;

	paged_init(&problem, &usual);
	workspace = aligned_alloc(64, 1 << 20);
	assert_true(fa_cpu_paged_workspace_bytes(problem_isas()[0], &problem.request) <= 1 << 20);
	fa_cpu_paged_begin(problem_isas()[0], &problem.request, workspace);
	memset(problem.out, 0xff, problem.out_bytes);
	assert_false(
		fa_cpu_paged_tile(problem_isas()[0], &problem.request, workspace, 0, NULL, &stop));
	free(workspace);
	paged_deinit(&problem);
}

static void test_random(void **state)
{
	const char *cases = getenv("FAD_TEST_CASES"), *given = getenv("FAD_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	int n = cases ? atoi(cases) : 100;

	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < n; i++) {
		struct paged_spec spec = { 0 };

		problem_seed(seed + (uint64_t)i);
		spec.dtype = dtypes[problem_random(3)];
		spec.batch = (int32_t)problem_pick(1, 5);
		spec.kv_heads = (int32_t)problem_pick(1, 3);
		spec.heads = spec.kv_heads * (int32_t)(problem_one_in(2) ? 1 : problem_pick(2, 9));
		spec.head_dim = (int32_t)(8 * (problem_one_in(4) ? problem_pick(1, 72)
		                                                 : problem_pick(1, 10)));
		spec.head_dim_v = problem_one_in(2) && spec.head_dim <= 512
		                          ? spec.head_dim
		                          : (int32_t)(8 * (problem_one_in(6)
		                                                   ? problem_pick(1, 64)
		                                                   : problem_pick(1, 10)));
		spec.page_tokens = (int32_t)(16 * (problem_one_in(3) ? problem_pick(1, 16)
		                                                     : 1u << problem_pick(0, 4)));
		spec.v_in_k = spec.head_dim_v <= spec.head_dim && problem_one_in(4);
		spec.layer_major = problem_one_in(2);
		spec.gaps = problem_one_in(2) ? (int32_t)problem_pick(1, 2) : 0;
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = problem_one_in(2) ? 1
			                : problem_one_in(4)
			                        ? 0
			                        : problem_pick(1, spec.heads > 4 ? 12 : 80);
			spec.lengths[b] = spec.n_new[b] +
			                  (problem_one_in(4) ? 0 : problem_pick(0, 200));
			if (problem_one_in(20))
				spec.lengths[b] = problem_pick(0, 20);
			if (problem_one_in(30))
				spec.lengths[b] += 1100;
			spec.first[b] = problem_one_in(4) ? problem_pick(0, spec.lengths[b]) : 0;
		}
		spec.causal = problem_one_in(2);
		spec.left_1 = problem_one_in(3) ? problem_pick(1, 100) : 0;
		spec.right_1 = problem_one_in(3) ? problem_pick(1, 60) : 0;
		spec.chunk = problem_one_in(4) ? problem_pick(1, 100) : 0;
		spec.prefixed = problem_one_in(4);
		for (int32_t b = 0; b < spec.batch; b++)
			spec.prefix[b] = problem_pick(0, spec.lengths[b] + 10);
		spec.softcap = problem_one_in(4) ? (float)problem_pick(1, 60) : 0;
		spec.alibi = problem_one_in(4);
		spec.sinks = problem_one_in(4);
		spec.tree = problem_one_in(3);
		spec.no_lse = problem_one_in(8);
		spec.broken = problem_one_in(4) ? (int32_t)problem_pick(1, 6) : 0;
		paged_test(&spec);
	}
}

static void test_check(void **state)
{
	struct paged_problem problem;
	struct fa_paged_request request;
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	char text[256];

	paged_init(&problem, &usual);
#define REFUSED(error, words)                                                                      \
	do {                                                                                       \
		assert_int_equal(fa_paged_check(&request, text, sizeof(text)), error);             \
		if (!strstr(text, words))                                                          \
			fail_msg("\"%s\" does not say %s", text, words);                           \
		request = problem.request;                                                         \
		request.attention.cache = &cache;                                                  \
		request.attention.step = &step;                                                    \
		cache = problem.cache;                                                             \
		step = problem.step;                                                               \
	} while (0)
	request = problem.request;
	request.op = (enum fa_paged_op)99;
	REFUSED(-EINVAL, "operation 99");
	cache.page_tokens = 24;
	REFUSED(-ENOTSUP, "page_tokens 24");
	cache.page_tokens = 512;
	REFUSED(-ENOTSUP, "page_tokens 512");
	cache.head_dim = 584;
	REFUSED(-ENOTSUP, "head_dim 584");
	cache.head_dim = 0;
	REFUSED(-EINVAL, "head_dim 0");
	cache.head_dim_v = 520;
	REFUSED(-ENOTSUP, "head_dim_v 520");
	cache.v_offset = 0;
	cache.head_dim_v = 72;
	REFUSED(-EINVAL, "head_dim_v 72");
	cache.v_offset = 8;
	REFUSED(-EINVAL, "v_offset 8");
	cache.dtype = (enum fa_attention_dtype)7;
	REFUSED(-ENOTSUP, "dtype 7");
	request.attention.layer = 3;
	REFUSED(-EINVAL, "layer 3");
	request.attention.heads = 5;
	REFUSED(-EINVAL, "heads 5");
	request.attention.scale = NAN;
	REFUSED(-EINVAL, "scale");
	step.table_entries = 5;
	REFUSED(-EINVAL, "the table has 5");
	problem.before[1] = 14;
	REFUSED(-EINVAL, "sequence 1 grows from 14 to 18");
	problem.before[1] = 13;
	problem.spec.first[1] = 19;
	REFUSED(-EINVAL, "first[1] 19");
	problem.spec.first[1] = 0;
	problem.cu_new[1] = 7;
	problem.before[0] = problem.spec.lengths[0];
	REFUSED(-EINVAL, "cu_new[2] 6");
	problem.cu_new[1] = 1;
	problem.before[0]--;
	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), 0);
	paged_deinit(&problem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_check),    cmocka_unit_test(test_pages),
		cmocka_unit_test(test_mixed),    cmocka_unit_test(test_long),
		cmocka_unit_test(test_empty),    cmocka_unit_test(test_dropped),
		cmocka_unit_test(test_features), cmocka_unit_test(test_dims),
		cmocka_unit_test(test_groups),   cmocka_unit_test(test_v_in_k),
		cmocka_unit_test(test_wide),     cmocka_unit_test(test_trees),
		cmocka_unit_test(test_alone),    cmocka_unit_test(test_hidden),
		cmocka_unit_test(test_broken),   cmocka_unit_test(test_stop),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
