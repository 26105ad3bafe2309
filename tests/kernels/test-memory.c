/*
 * Tests what kernels read and write, and that results depend on nothing else: ragged batches with
 * empty sequences, poison beside every row, NaN where a row must not look; reruns and other orders
 * of tiles give the same bits.
 */
#include "tests/kernels/problem.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_ragged(void **state)
{
	static const struct {
		int32_t batch;
		uint32_t q[8], k[8];
	} batches[] = {
		{ 5, { 3, 0, 17, 1, 0 }, { 5, 9, 17, 0, 0 } },
		{ 4, { 0, 0, 0, 1 }, { 0, 0, 0, 1 } },
		{ 2, { 0, 0 }, { 4, 0 } },
		{ 8, { 1, 1, 1, 1, 1, 1, 1, 1 }, { 130, 1, 257, 64, 0, 128, 129, 7 } },
		{ 3, { 250, 8, 301 }, { 250, 300, 140 } },
		{ 6, { 9, 100, 0, 47, 48, 49 }, { 9, 100, 50, 47, 47, 47 } },
	};

	for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
		for (unsigned int which = 0; which < 6; which++) {
			struct problem_spec spec = {
				.dtype = (enum fa_attention_dtype)(1 + (i + which) % 3),
				.batch = batches[i].batch,
				.heads = which % 2 ? 6 : 2,
				.kv_heads = 2,
				.head_dim = 40,
				.head_dim_v = 24,
				.ragged = true,
				.causal = which & 2,
				.alibi = which == 3,
				.sinks = which == 4,
				.left_1 = which == 5 ? 20 : 0,
				.layout = (enum problem_layout)((which + i) % PROBLEM_LAYOUTS),
			};

			memcpy(spec.lengths_q, batches[i].q, sizeof(batches[i].q));
			memcpy(spec.lengths_k, batches[i].k, sizeof(batches[i].k));
			problem_test(&spec);
		}
	}
}

static const struct problem_spec varied[] = {
	{ .dtype = FA_ATTENTION_F32,
	  .batch = 2,
	  .heads = 4,
	  .kv_heads = 2,
	  .head_dim = 64,
	  .head_dim_v = 64,
	  .n_q = 150,
	  .n_k = 290,
	  .causal = true },
	{ .dtype = FA_ATTENTION_BF16,
	  .batch = 1,
	  .heads = 6,
	  .kv_heads = 2,
	  .head_dim = 72,
	  .head_dim_v = 40,
	  .n_q = 131,
	  .n_k = 200,
	  .left_1 = 31,
	  .right_1 = 17 },
	{ .dtype = FA_ATTENTION_F16,
	  .batch = 3,
	  .heads = 6,
	  .kv_heads = 3,
	  .head_dim = 32,
	  .head_dim_v = 48,
	  .n_q = 3,
	  .n_k = 270,
	  .causal = true,
	  .left_1 = 150 },
	{ .dtype = FA_ATTENTION_BF16,
	  .batch = 3,
	  .heads = 2,
	  .kv_heads = 2,
	  .head_dim = 32,
	  .head_dim_v = 24,
	  .ragged = true,
	  .lengths_q = { 200, 0, 90 },
	  .lengths_k = { 201, 7, 90 },
	  .causal = true },
	{ .dtype = FA_ATTENTION_F32,
	  .batch = 2,
	  .heads = 4,
	  .kv_heads = 2,
	  .head_dim = 16,
	  .head_dim_v = 24,
	  .n_q = 140,
	  .n_k = 60,
	  .causal = true,
	  .sinks = true,
	  .alibi = true },
};

#define N_VARIED (sizeof(varied) / sizeof(varied[0]))

static void keep(const struct problem *problem, char **ret_out, char **ret_lse)
{
	*ret_out = malloc(problem->out.bytes + 1);
	*ret_lse = malloc(problem->lse.bytes + 1);
	memcpy(*ret_out, problem->out.data, problem->out.bytes);
	memcpy(*ret_lse, problem->lse.data, problem->lse.bytes);
}

static void assert_same(const struct problem *problem, const char *out, const char *lse)
{
	assert_memory_equal(problem->out.data, out, problem->out.bytes);
	assert_memory_equal(problem->lse.data, lse, problem->lse.bytes);
}

static void test_same_to_the_bit(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t i = 0; i < N_VARIED; i++) {
		struct problem problem;

		problem_init(&problem, &varied[i]);
		for (size_t n = 0; isas[n]; n++) {
			char *out, *lse;

			problem_run(&problem, isas[n], PROBLEM_ASCENDING);
			keep(&problem, &out, &lse);
			problem_run(&problem, isas[n], PROBLEM_ASCENDING);
			assert_same(&problem, out, lse);
			problem_run(&problem, isas[n], PROBLEM_DESCENDING);
			assert_same(&problem, out, lse);
			problem_run(&problem, isas[n], PROBLEM_SHUFFLED);
			assert_same(&problem, out, lse);
			problem_check(&problem, isas[n]);
			free(out);
			free(lse);
		}
		problem_deinit(&problem);
	}
}

static void spoil(const struct problem *problem, const struct fa_attention_tensor *tensor,
                  int32_t b, int64_t j, int32_t dim, double value)
{
	const struct fa_attention_params *params = &problem->params;

	for (int32_t h = 0; h < params->kv_heads; h++) {
		int64_t at = reference_k_at(params, tensor, b, j, h);

		for (int32_t c = 0; c < dim; c += 3)
			reference_set(params->dtype, tensor->data, at + c, value);
	}
}

/* Returns a key of the first sequence that some rows see and others do not. */
static int64_t seen_by_some(const struct fa_attention_params *params)
{
	int64_t n_q = reference_n_q(params, 0), n_k = reference_n_k(params, 0);

	for (int64_t j = n_k / 2; j < n_k; j++) {
		int64_t n = 0;

		for (int64_t i = 0; i < n_q; i++)
			n += reference_visible(params, 0, i, 0, j);
		if (n > 0 && n < n_q)
			return j;
	}
	fail_msg("no such key");
	return 0;
}

/* Makes a key NaN or infinite in K, V or both: rows that see it become non-finite at least in V's
 * damaged dims, all others stay right. */
static void test_hidden_nan(void **state)
{
	static const double values[] = { NAN, INFINITY, -INFINITY };
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t i = 0; i < N_VARIED * 3; i++) {
		const struct problem_spec *spec = &varied[i % N_VARIED];
		double value = values[i / N_VARIED];
		struct problem problem;
		const struct fa_attention_params *params = &problem.params;
		int64_t spoilt;
		double *exact;

		problem_init(&problem, spec);
		spoilt = seen_by_some(params);
		spoil(&problem, &params->v, 0, spoilt, params->head_dim_v, value);
		if (isnan(value))
			spoil(&problem, &params->k, 0, spoilt, params->head_dim, value);
		exact = malloc((size_t)params->head_dim_v * sizeof(*exact));

		for (size_t n = 0; isas[n]; n++) {
			int64_t clean = 0, hit = 0;

			problem_run(&problem, isas[n], PROBLEM_ASCENDING);
			for (int64_t row = 0; row < reference_n_q(params, 0) * params->heads;
			     row++) {
				int64_t t = row / params->heads, at;
				int32_t h = (int32_t)(row % params->heads);
				double lse;

				at = reference_q_at(params, &params->out, 0, t, h);
				if (reference_visible(params, 0, t, 0, spoilt)) {
					double got = reference_get(params->dtype, params->out.data,
					                           at);

					assert_false(isfinite(got));
					hit++;
					continue;
				}
				clean++;
				reference_row(params, 0, t, h, false, exact, &lse);
				for (int32_t c = 0; c < params->head_dim_v; c++) {
					double got = reference_get(params->dtype, params->out.data,
					                           at + c);

					if (!(fabs(got - exact[c]) < 0.03))
						fail_msg("%s on %s: row %lld: %g, not %g",
						         problem_describe(&problem),
						         fa_cpu_isa_name(isas[n]), (long long)t,
						         got, exact[c]);
				}
			}
			assert_true(clean > 0 && hit > 0);
		}
		free(exact);
		problem_deinit(&problem);
	}
}

/* A row's own NaN changes no other row. */
static void test_nan_row(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (int64_t n_q = 2; n_q <= 60; n_q += 29) {
		struct problem_spec spec = varied[1];
		struct problem problem;
		const struct fa_attention_params *params = &problem.params;
		char *out, *lse;
		int64_t at;
		size_t row_bytes;

		spec.heads = spec.kv_heads = 1;
		spec.n_q = n_q;
		problem_init(&problem, &spec);
		for (size_t n = 0; isas[n]; n++) {
			int64_t q = reference_q_at(params, &params->q, 0, 1, 0);
			double before = reference_get(params->dtype, params->q.data, q);

			problem_run(&problem, isas[n], PROBLEM_ASCENDING);
			keep(&problem, &out, &lse);
			reference_set(params->dtype, params->q.data, q, NAN);
			problem_run(&problem, isas[n], PROBLEM_ASCENDING);
			reference_set(params->dtype, params->q.data, q, before);

			at = reference_q_at(params, &params->out, 0, 1, 0);
			row_bytes = (size_t)params->head_dim_v * 2;
			for (int32_t c = 0; c < params->head_dim_v; c++)
				assert_true(isnan(
					reference_get(params->dtype, params->out.data, at + c)));
			assert_true(isnan(params->lse[reference_lse_at(params, 0, 1, 0)]));
			memcpy(problem.out.data + at * 2, out + at * 2, row_bytes);
			params->lse[reference_lse_at(params, 0, 1, 0)] = ((
				float *)lse)[reference_lse_at(params, 0, 1, 0)];
			assert_same(&problem, out, lse);
			free(out);
			free(lse);
		}
		problem_deinit(&problem);
	}
}

static void test_without_lse(void **state)
{
	for (size_t i = 0; i < N_VARIED; i++) {
		struct problem_spec spec = varied[i];

		spec.no_lse = true;
		problem_test(&spec);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ragged),      cmocka_unit_test(test_same_to_the_bit),
		cmocka_unit_test(test_hidden_nan),  cmocka_unit_test(test_nan_row),
		cmocka_unit_test(test_without_lse),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
