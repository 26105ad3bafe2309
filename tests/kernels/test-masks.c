/*
 * Masks besides causal and windows, on the CPU: chunks and prefixes over tensors and pages, with
 * infinities and NaNs in hidden keys, and whether hidden keys cost time.
 */
#include "tests/kernels/paged-problem.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const struct {
	bool causal;
	int64_t chunk, left_1, right_1;
	uint32_t prefix;
} masks[] = {
	{ true, 1, 0, 0, 0 },     { true, 64, 0, 0, 0 },   { false, 64, 0, 0, 0 },
	{ true, 100, 41, 0, 0 },  { false, 48, 9, 17, 0 }, { true, 5000, 0, 0, 0 },
	{ true, 0, 0, 0, 90 },    { true, 0, 33, 0, 90 },  { true, 0, 0, 21, 90 },
	{ false, 0, 0, 0, 90 },   { true, 64, 0, 0, 90 },  { true, 0, 0, 0, 5000 },
	{ true, 50, 21, 31, 77 }, { true, 256, 0, 0, 1 },  { true, INT64_MAX, 0, 0, 0 },
};

#define N_MASKS (sizeof(masks) / sizeof(masks[0]))

static const struct {
	int64_t n_q, n_k;
} shapes[] = {
	{ 1, 1 },     { 1, 129 }, { 4, 300 },   { 70, 70 },    { 113, 203 },
	{ 203, 113 }, { 3, 0 },   { 300, 300 }, { 128, 1024 },
};

#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void test_shapes(void **state)
{
	for (size_t i = 0; i < N_SHAPES; i++) {
		for (size_t m = 0; m < N_MASKS; m++) {
			struct problem_spec spec = {
				.dtype = (enum fa_attention_dtype)(1 + (i + m) % 3),
				.batch = 2,
				.heads = 1 + (int32_t)(m % 3),
				.kv_heads = 1,
				.head_dim = 32,
				.head_dim_v = 40,
				.n_q = shapes[i].n_q,
				.n_k = shapes[i].n_k,
				.causal = masks[m].causal,
				.left_1 = masks[m].left_1,
				.right_1 = masks[m].right_1,
				.chunk = masks[m].chunk,
				.prefixed = masks[m].prefix > 0,
				.prefix = { masks[m].prefix, masks[m].prefix / 3 },
				.alibi = (i + m) % 5 == 0,
				.sinks = (i + m) % 4 == 0,
				.layout = (enum problem_layout)((i + m) % PROBLEM_LAYOUTS),
			};

			problem_test(&spec);
		}
	}
}

/* Ragged batches, and few rows over so many keys that they are split. */
static void test_ragged(void **state)
{
	for (size_t m = 0; m < N_MASKS; m++) {
		const int64_t chunk = masks[m].chunk;
		struct problem_spec spec = {
			.dtype = (enum fa_attention_dtype)(1 + m % 3),
			.batch = 4,
			.heads = 2,
			.kv_heads = 1,
			.head_dim = 16,
			.head_dim_v = 16,
			.ragged = true,
			.lengths_q = { 3, 0, 40, 7 },
			.lengths_k = { 5000, 77, 140, 3 },
			.causal = masks[m].causal,
			.left_1 = masks[m].left_1,
			.right_1 = masks[m].right_1,
			.chunk = chunk > 1 && chunk < INT64_MAX ? chunk * 30 : chunk,
			.prefixed = masks[m].prefix > 0,
			.prefix = { masks[m].prefix * 50, 5, masks[m].prefix, 1 },
		};

		problem_test(&spec);
	}
}

/* Tokens of chunks that are over may be dropped from the cache. */
static void test_pages(void **state)
{
	for (size_t m = 0; m < 2 * N_MASKS; m++) {
		const size_t mask = m % N_MASKS;
		struct paged_spec spec = {
			.dtype = (enum fa_attention_dtype)(1 + m % 3),
			.batch = 4,
			.heads = 4,
			.kv_heads = 2,
			.head_dim = 32,
			.head_dim_v = 32,
			.page_tokens = 16 << m % 5,
			.n_new = { 1, 5, 70, 3 },
			.lengths = { 132, 18, 300, 2500 },
			.first = { 0, 0, 0, m % 2 ? 1900 : 0 },
			.causal = masks[mask].causal,
			.left_1 = masks[mask].left_1,
			.right_1 = masks[mask].right_1,
			.chunk = masks[mask].chunk,
			.prefixed = masks[mask].prefix > 0,
			.prefix = { masks[mask].prefix, 12, 2 * masks[mask].prefix + 70, 2500 },
			.sinks = m % 4 == 1,
			.alibi = m % 6 == 2,
			.tree = m % 3 == 2,
			.broken = m >= N_MASKS ? 1 + (int32_t)m % 5 : 0,
		};

		paged_test(&spec);
	}
}

/* Codes take other paths of the kernels. */
static void test_codes(void **state)
{
	for (size_t m = 0; m < N_MASKS; m++) {
		struct paged_spec spec = {
			.dtype = FA_ATTENTION_BF16,
			.store = m % 2 ? FA_PAGED_E4M3 : FA_PAGED_INT8,
			.batch = 2,
			.heads = 4,
			.kv_heads = 2,
			.head_dim = 64,
			.head_dim_v = 64,
			.page_tokens = 64,
			.n_new = { 2, 90 },
			.lengths = { 140, 200 },
			.causal = masks[m].causal,
			.left_1 = masks[m].left_1,
			.right_1 = masks[m].right_1,
			.chunk = masks[m].chunk,
			.prefixed = masks[m].prefix > 0,
			.prefix = { masks[m].prefix, masks[m].prefix + 60 },
		};

		paged_test(&spec);
	}
}

/* Sets all of K and V of the first batch's keys [begin, end) to NaN or infinity. */
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

/* Rows that see none of the broken keys are as without them; the others are not judged. */
static void test_hidden(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t m = 0; m < N_MASKS; m++) {
		for (int64_t n_q = 2; n_q < 200; n_q += 148) {
			struct problem_spec spec = {
				.dtype = (enum fa_attention_dtype)(1 + m % 3),
				.batch = 1,
				.heads = 1,
				.kv_heads = 1,
				.head_dim = 16,
				.head_dim_v = 16,
				.n_q = n_q,
				.n_k = 190,
				.causal = masks[m].causal,
				.left_1 = masks[m].left_1,
				.right_1 = masks[m].right_1,
				.chunk = masks[m].chunk,
				.prefixed = masks[m].prefix > 0,
				.prefix = { masks[m].prefix },
			};
			struct problem problem;
			const struct fa_attention_params *p = &problem.params;

			for (int64_t begin = 0; begin < 190; begin += 38) {
				problem_init(&problem, &spec);
				break_keys(&problem, begin, begin + 5);
				for (size_t i = 0; isas[i]; i++) {
					problem_run(&problem, isas[i], PROBLEM_ASCENDING);
					for (int64_t row = 0; row < n_q; row++) {
						int64_t out = reference_q_at(p, &p->out, 0, row, 0);
						double exact[16], lse;
						bool sees = false;

						for (int64_t j = begin; j < begin + 5; j++)
							sees |= reference_visible(p, 0, row, 0, j);
						if (sees)
							continue;
						reference_row(p, 0, row, 0, false, exact, &lse);
						for (int c = 0; c < 16; c++) {
							double got = reference_get(
								p->dtype, p->out.data, out + c);

							if (!(fabs(got - exact[c]) < 0.05))
								fail_msg("%s: broken keys from %d: "
								         "row %d has %g, not %g",
								         problem_describe(&problem),
								         (int)begin, (int)row, got,
								         exact[c]);
						}
					}
				}
				problem_deinit(&problem);
			}
		}
	}
}

/* Returns the least processor time of three runs. */
static double seconds_of(struct problem *problem, const struct fa_cpu_isa *isa)
{
	double least = INFINITY;

	for (int i = 0; i < 3; i++) {
		struct timespec begin, end;
		double seconds;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
		problem_run(problem, isa, PROBLEM_ASCENDING);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
		seconds = (double)(end.tv_sec - begin.tv_sec) +
		          (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
		least = fmin(least, seconds);
	}
	return least;
}

/* Time is in proportion to the pairs that are seen, as far as tiles divide them. */
static void test_time(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct problem_spec spec = {
		.dtype = FA_ATTENTION_F32,
		.batch = 1,
		.heads = 1,
		.kv_heads = 1,
		.head_dim = 64,
		.head_dim_v = 64,
		.n_q = 4096,
		.n_k = 4096,
		.causal = true,
	};
	struct problem problem;

	problem_init(&problem, &spec);
	for (size_t i = 0; isas[i]; i++) {
		double all, some, part;

		problem.params.chunk_tokens = 0;
		all = seconds_of(&problem, isas[i]);
		part = 1 / fa_attention_flops(&problem.params);
		problem.params.chunk_tokens = 512;
		some = seconds_of(&problem, isas[i]);
		part *= fa_attention_flops(&problem.params);
		/* Tiles at chunks' borders, and work per row, cost as much again. */
		if (!(some < 2.5 * part * all))
			fail_msg("%s: chunks take %g of the time, for %g of the pairs",
			         fa_cpu_isa_name(isas[i]), some / all, part);
	}
	problem_deinit(&problem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes), cmocka_unit_test(test_ragged),
		cmocka_unit_test(test_pages),  cmocka_unit_test(test_codes),
		cmocka_unit_test(test_hidden), cmocka_unit_test(test_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
