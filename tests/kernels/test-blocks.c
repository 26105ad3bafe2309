/*
 * Blocks, bits and patterns on the CPU: random and hostile lists, infinities and NaNs in hidden keys,
 * lists that change meanwhile, and whether hidden blocks cost time.
 */
#include "tests/kernels/paged-problem.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const struct {
	int64_t n_q, n_k;
} shapes[] = {
	{ 1, 1 },     { 1, 300 },   { 5, 700 }, { 70, 70 },    { 130, 260 },
	{ 260, 130 }, { 300, 300 }, { 3, 0 },   { 200, 1000 }, { 2, 5000 },
};

#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* Vulkan on the CPU: every third of the variants is enough there. */
static bool is_slow(void)
{
	return strcmp(fa_cpu_isa_name(problem_isas()[0]), "vulkan") == 0;
}

static bool is_skipped(size_t n, int variant)
{
	return is_slow() && (n + (size_t)variant) % 3 > 0;
}

/* A spec of shape @n with the features that @n and @variant choose. */
static struct problem_spec spec_of(size_t n, int variant)
{
	static const int32_t kv_heads[] = { 1, 4, 2 };

	return (struct problem_spec){
		.dtype = (enum fa_attention_dtype)(1 + (n + (size_t)variant) % 3),
		.batch = 2,
		.heads = 4,
		.kv_heads = kv_heads[variant % 3],
		.head_dim = 32,
		.head_dim_v = 40,
		.n_q = shapes[n].n_q,
		.n_k = shapes[n].n_k,
		.causal = variant % 2,
		.left_1 = variant % 7 == 3 ? 60 : 0,
		.chunk = variant % 5 == 4 ? 100 : 0,
		.density = variant % 4 == 3 ? 90 : 30,
		.of_heads = variant % 3 == 1,
		.of_batch = variant % 4 == 2,
		.alibi = variant % 6 == 5,
		.softcap = variant % 6 == 4 ? 5 : 0,
		.sinks = variant % 5 == 2,
		.layout = (enum problem_layout)(variant % PROBLEM_LAYOUTS),
	};
}

static void test_blocks(void **state)
{
	for (size_t n = 0; n < N_SHAPES; n++) {
		for (int variant = 0; variant < 24; variant++) {
			struct problem_spec spec = spec_of(n, variant);

			if (is_skipped(n, variant))
				continue;
			spec.block_rows = variant % 2 ? 128 : 64;
			spec.block_keys = variant / 2 % 2 ? 128 : 64;
			spec.hostile = variant >= 12;
			problem_test(&spec);
		}
	}
}

static void test_bits(void **state)
{
	for (size_t n = 0; n < N_SHAPES; n++) {
		for (int variant = 0; variant < 12; variant++) {
			struct problem_spec spec = spec_of(n, variant);

			if (is_skipped(n, variant))
				continue;
			spec.bits = true;
			if (variant % 4 == 1)
				spec.block_rows = spec.block_keys = 64;
			problem_test(&spec);
		}
	}
}

static const struct fa_attention_pattern patterns[] = {
	{ 64, 2, 4, 1, 0 },
	{ 16, 1, 3, 0, 0 },
	{ 64, 1, 8, -1, 0 },
	{ 48, 0, 5, 2, 7 },
	{ 128, 16, 1, 1, 0 },
	{ 32, 3, 100, 3, 2 },
	{ 16, 4, 7, -3, 8 },
	/* Query heads of one KV head differ. */
	{ 16, 1, 5, -1, 1 },
	{ 1 << 20, 1, 2, 1, 0 },
	{ 64, 0, INT32_MAX, INT32_MAX, INT32_MAX },
	{ 64, INT32_MAX, INT32_MAX, INT32_MIN, INT32_MAX },
};

#define N_PATTERNS (int)(sizeof(patterns) / sizeof(patterns[0]))

static void test_patterns(void **state)
{
	for (size_t n = 0; n < N_SHAPES; n++) {
		for (int variant = 0; variant < N_PATTERNS; variant++) {
			struct problem_spec spec = spec_of(n, variant);

			if (is_skipped(n, variant))
				continue;
			spec.pattern = patterns[variant];
			if (variant % 5 == 1)
				spec.bits = true;
			problem_test(&spec);
		}
	}
}

static void test_ragged(void **state)
{
	for (int variant = 0; variant < 30; variant++) {
		struct problem_spec spec = spec_of(0, variant);

		spec.batch = 4;
		spec.ragged = true;
		memcpy(spec.lengths_q, (uint32_t[]){ 3, 0, 140, 7 }, 4 * sizeof(uint32_t));
		memcpy(spec.lengths_k, (uint32_t[]){ 4000, 77, 190, 3 }, 4 * sizeof(uint32_t));
		if (variant % 3 != 1)
			spec.block_rows = spec.block_keys = variant % 2 ? 128 : 64;
		spec.bits = variant % 3 == 1;
		spec.hostile = variant % 2;
		if (variant % 5 == 0)
			spec.pattern = patterns[variant / 5 % N_PATTERNS];
		problem_test(&spec);
	}
}

static void test_pages(void **state)
{
	for (int variant = 0; variant < 3 * N_PATTERNS; variant++) {
		static const int32_t kv_heads[] = { 1, 2, 4 };
		struct paged_spec spec = {
			.dtype = (enum fa_attention_dtype)(1 + variant % 3),
			.store = variant % 7 == 5 ? FA_PAGED_E4M3 : FA_PAGED_PLAIN,
			.batch = 4,
			.heads = 4,
			.kv_heads = kv_heads[variant / 3 % 3],
			.head_dim = 32,
			.head_dim_v = 32,
			.page_tokens = 16 << variant % 5,
			.n_new = { 1, 5, 70, 3 },
			.lengths = { 132, 18, 300, 2500 },
			.first = { 0, 0, 0, variant % 2 ? 1900 : 0 },
			.causal = variant % 4 > 0,
			.left_1 = variant % 6 == 2 ? 90 : 0,
			.chunk = variant % 8 == 3 ? 64 : 0,
			.pattern = patterns[variant % N_PATTERNS],
			.alibi = variant % 6 == 4,
			.tree = variant % 3 == 2,
			.broken = variant % 5,
		};

		paged_test(&spec);
	}
}

/* vLLM's block-sparse paged attention: local blocks, a stride that slides with the head, all blocks
 * of 64 tokens. What it shows one row, counted by hand. */
static void test_pattern_by_hand(void **state)
{
	const struct fa_attention_pattern pattern = { 64, 2, 4, 1, 0 };
	/* The row is in block 9: 8 and 9 are local; with head 0 3 and 7 are strided, with head 1 2
	 * and 6. */
	static const bool seen[2][10] = { { 0, 0, 0, 1, 0, 0, 0, 1, 1, 1 },
		                          { 0, 0, 1, 0, 0, 0, 1, 0, 1, 1 } };

	for (int h = 0; h < 2; h++) {
		for (int block = 0; block < 10; block++)
			assert_int_equal(reference_pattern_shows(&pattern, h, 1, 9 * 64 + 5,
			                                         block * 64 + 63),
			                 seen[h][block]);
	}
}

/* Sets all of K and V of keys [begin, end) to NaN or infinity. */
static void break_keys(struct problem *problem, int64_t begin, int64_t end)
{
	static const double values[] = { NAN, INFINITY, -INFINITY };
	const struct fa_attention_params *p = &problem->params;

	for (int64_t j = begin; j < end; j++) {
		for (int32_t c = 0; c < p->head_dim; c++)
			reference_set(p->dtype, p->k.data, reference_k_at(p, &p->k, 0, j, 0) + c,
			              values[(j + c) % 3]);
		for (int32_t c = 0; c < p->head_dim_v; c++)
			reference_set(p->dtype, p->v.data, reference_k_at(p, &p->v, 0, j, 0) + c,
			              values[j % 3]);
	}
}

/* Rows that see none of the broken keys are as without them. */
static void test_hidden(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	int judged = 0;

	for (int n = 0; n < 60; n++) {
		struct problem_spec spec = {
			.dtype = (enum fa_attention_dtype)(1 + n % 3),
			.batch = 1,
			.heads = 1,
			.kv_heads = 1,
			.head_dim = 16,
			.head_dim_v = 16,
			.n_q = n % 2 ? 150 : 3,
			.n_k = 400,
			.causal = n % 4 == 3,
			.density = 30,
			.bits = n % 3 == 1,
		};
		struct problem problem;
		const struct fa_attention_params *p = &problem.params;
		const int64_t begin = 7 * (n % 50);

		if (n % 3 == 0)
			spec.block_rows = spec.block_keys = 64;
		if (n % 3 == 2)
			spec.pattern = patterns[n / 3 % N_PATTERNS];
		problem_init(&problem, &spec);
		break_keys(&problem, begin, begin + 9);
		for (size_t i = 0; isas[i]; i++) {
			problem_run(&problem, isas[i], PROBLEM_ASCENDING);
			for (int64_t row = 0; row < spec.n_q; row++) {
				int64_t out = reference_q_at(p, &p->out, 0, row, 0);
				double exact[16], lse;
				bool sees = false;

				for (int64_t j = begin; j < begin + 9; j++)
					sees |= reference_visible(p, 0, row, 0, j);
				if (sees)
					continue;
				judged++;
				reference_row(p, 0, row, 0, false, exact, &lse);
				for (int c = 0; c < 16; c++) {
					double got = reference_get(p->dtype, p->out.data, out + c);

					if (!(fabs(got - exact[c]) < 0.05))
						fail_msg("%s on %s: row %d has %g, not %g",
						         problem_describe(&problem),
						         fa_cpu_isa_name(isas[i]), (int)row, got,
						         exact[c]);
				}
			}
		}
		problem_deinit(&problem);
	}
	assert_true(judged > 1000);
}

/* ---- lists that change meanwhile: nothing else is read, and kernels end */

struct changer {
	struct problem *problem;
	bool stop;
};

static void *change(void *data)
{
	struct changer *changer = data;
	struct problem *problem = changer->problem;
	int32_t *const memories[] = { (int32_t *)problem->offsets.data,
		                      (int32_t *)problem->columns.data,
		                      (int32_t *)problem->words.data };
	const size_t bytes[] = { problem->offsets.bytes, problem->columns.bytes,
		                 problem->words.bytes };
	uint32_t x = 1;

	while (!__atomic_load_n(&changer->stop, __ATOMIC_RELAXED)) {
		for (int m = 0; m < 3; m++) {
			x = x * 1664525 + 1013904223;
			__atomic_store_n(&memories[m][(x >> 8) % (bytes[m] / 4)],
			                 x % 3 ? (int32_t)(x >> 28) : (int32_t)x, __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

static void test_changing(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct problem_spec spec = {
		.dtype = FA_ATTENTION_BF16,
		.batch = 1,
		.heads = 2,
		.kv_heads = 2,
		.head_dim = 16,
		.head_dim_v = 16,
		.n_q = 500,
		.n_k = 700,
		.block_rows = 64,
		.block_keys = 64,
		.density = 60,
		.of_heads = true,
		.bits = true,
	};
	struct problem problem;
	struct changer changer = { .problem = &problem };
	pthread_t thread;

	problem_init(&problem, &spec);
	assert_int_equal(pthread_create(&thread, NULL, change, &changer), 0);
	for (size_t i = 0; isas[i]; i++) {
		for (int n = 0; n < 20; n++)
			problem_run(&problem, isas[i], PROBLEM_ASCENDING);
	}
	__atomic_store_n(&changer.stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	problem_deinit(&problem);
}

/* ---- time */

/* Returns the least processor time of five runs. */
static double seconds_of(const struct fa_attention_params *params, const struct fa_cpu_isa *isa)
{
	void *scratch = aligned_alloc(64, FA_CPU_SCRATCH_BYTES_MAX);
	void *workspace = aligned_alloc(64, FA_CPU_WORKSPACE_BYTES_MAX);
	double least = INFINITY;

	assert_true(scratch && workspace);
	for (int i = 0; i < 5; i++) {
		const int64_t tiles = fa_cpu_attention_tiles(isa, params);
		struct timespec begin, end;
		double seconds;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
		fa_cpu_attention_begin(isa, params, workspace);
		for (int64_t tile = 0; tile < tiles; tile++)
			fa_cpu_attention_tile(isa, params, workspace, tile, scratch, NULL);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
		seconds = (double)(end.tv_sec - begin.tv_sec) +
		          (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
		least = fmin(least, seconds);
	}
	free(scratch);
	free(workspace);
	return least;
}

/* A quarter of the blocks take little more than a quarter of the time. A busy machine distorts the
 * ratio, so that only a large loss fails; FAD_TEST_VERBOSE prints the efficiency. */
static void test_time(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct problem_spec spec = {
		.dtype = FA_ATTENTION_BF16,
		.batch = 1,
		.heads = 2,
		.kv_heads = 2,
		.head_dim = 128,
		.head_dim_v = 128,
		.n_q = 2048,
		.n_k = 2048,
		.block_rows = 128,
		.block_keys = 128,
		.density = 25,
		.of_heads = true,
	};
	struct problem problem;
	struct fa_attention_blocks blocks;

	if (is_slow())
		skip();
	problem_init(&problem, &spec);
	blocks = problem.params.blocks;
	/* Exactly a quarter: each row block has 4 of 16. */
	for (int64_t list = 0; list < 32; list++) {
		int32_t *offsets = (int32_t *)problem.offsets.data + list / 16 * 17 + list % 16;
		int32_t *columns = (int32_t *)problem.columns.data + list / 16 * 256 +
		                   list % 16 * 4;

		offsets[0] = (int32_t)(list % 16 * 4);
		offsets[1] = offsets[0] + 4;
		for (int32_t c = 0; c < 4; c++)
			columns[c] = c * 4 + (int32_t)problem_random(4);
	}
	for (size_t i = 0; isas[i]; i++) {
		double all, some;

		some = seconds_of(&problem.params, isas[i]);
		problem.params.blocks = (struct fa_attention_blocks){ 0 };
		all = seconds_of(&problem.params, isas[i]);
		problem.params.blocks = blocks;
		if (getenv("FAD_TEST_VERBOSE"))
			printf("%s: all %.2f ms, a quarter %.2f ms, efficiency %.3f\n",
			       fa_cpu_isa_name(isas[i]), all * 1e3, some * 1e3, all / 4 / some);
		if (!(all / 4 / some > 0.6))
			fail_msg("%s: a quarter of the blocks takes %g of the time",
			         fa_cpu_isa_name(isas[i]), some / all);
	}
	problem_deinit(&problem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks),   cmocka_unit_test(test_bits),
		cmocka_unit_test(test_patterns), cmocka_unit_test(test_ragged),
		cmocka_unit_test(test_pages),    cmocka_unit_test(test_pattern_by_hand),
		cmocka_unit_test(test_hidden),   cmocka_unit_test(test_changing),
		cmocka_unit_test(test_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
