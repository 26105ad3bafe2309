/*
 * Numerical limits: scores that overflow a naive exponential, rows without keys, sinks, soft caps
 * of every size, rounding of every half-precision number.
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

/* Few and many rows, to run both kernels. */
static const int64_t rows[] = { 2, 70 };

static struct problem_spec plain(int64_t n_q)
{
	return (struct problem_spec){
		.dtype = FA_ATTENTION_F32,
		.batch = 1,
		.heads = 2,
		.kv_heads = 1,
		.head_dim = 64,
		.head_dim_v = 32,
		.n_q = n_q,
		.n_k = 200,
	};
}

static void test_large_scores(void **state)
{
	static const float scales[] = { 1, 30, 1000, 1e6f, -1, -1000 };

	for (size_t r = 0; r < 2; r++) {
		for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
			struct problem_spec spec = plain(rows[r]);

			/* fp32 rounds a score of 1000 to 6e-5, and exp makes that relative. */
			spec.scale = scales[i];
			spec.tolerance = 4 + 8 * fabs(scales[i]);
			problem_test(&spec);
			spec.alibi = true;
			spec.causal = true;
			problem_test(&spec);
		}
	}
}

/* One key has a score far above the rest: the row is its V, and lse its score. */
static void test_one_hot(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t r = 0; r < 2; r++) {
		for (int64_t key = 0; key < 200; key += 33) {
			struct problem_spec spec = plain(rows[r]);
			struct problem problem;
			const struct fa_attention_params *params = &problem.params;

			spec.scale = 1e4f;
			problem_init(&problem, &spec);
			for (int64_t i = 0; i < spec.n_q * spec.heads; i++)
				reference_set(params->dtype, params->q.data,
				              reference_q_at(params, &params->q, 0, i / spec.heads,
				                             (int32_t)(i % spec.heads)),
				              50);
			reference_set(params->dtype, params->k.data,
			              reference_k_at(params, &params->k, 0, key, 0), 1e4);
			for (size_t n = 0; isas[n]; n++) {
				problem_run(&problem, isas[n], PROBLEM_ASCENDING);
				for (int64_t i = 0; i < spec.n_q; i++) {
					const float *out = (float *)params->out.data +
					                   reference_q_at(params, &params->out, 0,
					                                  i, 1);
					const float *v = (float *)params->v.data +
					                 reference_k_at(params, &params->v, 0, key,
					                                0);

					for (int32_t c = 0; c < spec.head_dim_v; c++)
						assert_true(fabsf(out[c] - v[c]) <=
						            1e-6f * fabsf(v[c]));
				}
			}
			problem_deinit(&problem);
		}
	}
}

static void test_softcaps(void **state)
{
	static const float caps[] = {
		1e-30f, 1e-3f, 0.5f, 5, 50, 1e4f, 1e12f, 1e24f, 1e26f, 3e38f
	};

	for (size_t r = 0; r < 2; r++) {
		for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); i++) {
			struct problem_spec spec = plain(rows[r]);

			spec.softcap = caps[i];
			spec.magnitude = i % 2 ? 1 : 4;
			spec.tolerance = spec.magnitude > 1 ? 20 : 1;
			problem_test(&spec);
			spec.causal = true;
			spec.sinks = true;
			spec.dtype = FA_ATTENTION_BF16;
			problem_test(&spec);
		}
	}
}

static void test_rows_that_see_nothing(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (unsigned int which = 0; which < 12; which++) {
		struct problem_spec spec = plain(rows[which % 2]);
		struct problem problem;
		const struct fa_attention_params *params = &problem.params;

		spec.n_k = which / 2 % 3 == 0 ? 0 : 1;
		spec.causal = which / 2 % 3 == 1;
		spec.left_1 = which / 2 % 3 == 2 ? 1 : 0;
		spec.right_1 = spec.left_1;
		spec.sinks = which >= 6;
		problem_init(&problem, &spec);
		for (size_t n = 0; isas[n]; n++) {
			problem_run(&problem, isas[n], PROBLEM_ASCENDING);
			for (int32_t h = 0; h < spec.heads; h++) {
				int64_t at = reference_q_at(params, &params->out, 0, 0, h);
				float lse = params->lse[reference_lse_at(params, 0, 0, h)];
				float wanted = spec.sinks ? problem.sinks[h] : -INFINITY;

				for (int32_t c = 0; c < spec.head_dim_v; c++)
					assert_true(((float *)params->out.data)[at + c] == 0);
				assert_true(lse == wanted);
			}
			problem_check(&problem, isas[n]);
		}
		problem_deinit(&problem);
	}
}

static void test_sinks(void **state)
{
	static const float sinks[] = { -INFINITY, -1e30f, -300, 0, 300, 1e30f };
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t r = 0; r < 2; r++) {
		for (size_t i = 0; i + 1 < sizeof(sinks) / sizeof(sinks[0]); i++) {
			struct problem_spec spec = plain(rows[r]);
			struct problem problem;

			spec.sinks = true;
			spec.causal = i % 2;
			problem_init(&problem, &spec);
			problem.sinks[0] = sinks[i];
			problem.sinks[1] = sinks[i + 1];
			for (size_t n = 0; isas[n]; n++) {
				problem_run(&problem, isas[n], PROBLEM_ASCENDING);
				problem_check(&problem, isas[n]);
			}
			problem_deinit(&problem);
		}
	}
}

/* The device cannot keep numbers below 2^-126. */
static bool flushes(void)
{
	return getenv("FAD_TEST_FLUSHES") != NULL;
}

/* With one key the row is V, so every number must pass through unchanged. */
static void test_every_half(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++) {
		for (size_t r = 0; r < 2; r++) {
			struct problem_spec spec = plain(r == 0 ? 1 : 70);
			struct problem problem;
			const struct fa_attention_params *params = &problem.params;

			spec.dtype = (enum fa_attention_dtype)dtype;
			spec.heads = 1;
			spec.head_dim = 8;
			spec.head_dim_v = 512;
			spec.n_k = 1;
			spec.batch = 16;
			problem_init(&problem, &spec);
			for (uint32_t base = 0; base < 0x10000; base += 16 * 512) {
				for (uint32_t i = 0; i < 16 * 512; i++)
					((uint16_t *)params->v
					         .data)[reference_k_at(params, &params->v,
					                               (int32_t)(i / 512), 0, 0) +
					                i % 512] = (uint16_t)(base + i);
				for (size_t n = 0; isas[n]; n++) {
					bool dot = strcmp(fa_cpu_isa_name(isas[n]), "avx512bf16") ==
					           0;

					problem_run(&problem, isas[n], PROBLEM_ASCENDING);
					for (uint32_t i = 0; i < 16 * 512; i++) {
						int64_t at = reference_q_at(params, &params->out,
						                            (int32_t)(i / 512), 0,
						                            0) +
						             i % 512;
						uint16_t bits = ((uint16_t *)params->out.data)[at];
						uint16_t v = (uint16_t)(base + i);
						double wanted = reference_get(spec.dtype, &v, 0);
						double got = reference_get(spec.dtype, &bits, 0);

						/* The dot product takes subnormals as 0. */
						if (dot && r == 1 && dtype == FA_ATTENTION_BF16 &&
						    fabs(wanted) < 0x1p-126)
							wanted = 0;
						if (flushes() && got == 0 &&
						    fabs(wanted) < 0x1p-126)
							wanted = 0;
						if (isnan(wanted) ? !isnan(got) : got != wanted)
							fail_msg("dtype %d on %s: %04x became %04x",
							         dtype, fa_cpu_isa_name(isas[n]), v,
							         bits);
					}
				}
			}
			problem_deinit(&problem);
		}
	}
}

/* Results are rounded: the mean of two neighbours is a tie and goes to even; a mean slightly
 * nearer to one neighbour goes to it. */
static void test_rounding(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++) {
		struct problem_spec spec = plain(1);
		struct problem problem;
		const struct fa_attention_params *params = &problem.params;

		spec.dtype = (enum fa_attention_dtype)dtype;
		spec.heads = 1;
		spec.head_dim = 8;
		spec.head_dim_v = 512;
		spec.n_k = 2;
		spec.scale = 1e-30f; /* both keys weigh the same */
		problem_init(&problem, &spec);
		for (uint32_t base = 0x100; base < 0x7b00; base += 512) {
			for (uint32_t i = 0; i < 512; i++) {
				((uint16_t *)params->v
				         .data)[reference_k_at(params, &params->v, 0, 0, 0) + i] =
					(uint16_t)(base + i);
				((uint16_t *)params->v
				         .data)[reference_k_at(params, &params->v, 0, 1, 0) + i] =
					(uint16_t)(base + i + 1);
			}
			for (size_t n = 0; isas[n]; n++) {
				problem_run(&problem, isas[n], PROBLEM_ASCENDING);
				for (uint32_t i = 0; i < 512; i++) {
					int64_t at = reference_q_at(params, &params->out, 0, 0, 0) +
					             i;
					uint32_t low = base + i, even = low % 2 ? low + 1 : low;

					/* Half of a number near 2^-126 is subnormal. */
					if (flushes() && dtype == FA_ATTENTION_BF16 && low < 0x280)
						continue;

					assert_int_equal(((uint16_t *)params->out.data)[at], even);
				}
			}
		}
		problem_deinit(&problem);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_large_scores), cmocka_unit_test(test_one_hot),
		cmocka_unit_test(test_softcaps),     cmocka_unit_test(test_rows_that_see_nothing),
		cmocka_unit_test(test_sinks),        cmocka_unit_test(test_every_half),
		cmocka_unit_test(test_rounding),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
