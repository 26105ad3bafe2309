/*
 * Attention whose q, k and v are codes of E4M3, with scales, against fp64 with the same codes and
 * scales.
 */
#include "tests/kernels/problem.h"
#include "tests/kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OF_TENSOR PROBLEM_SCALES
#define OF_HEAD (PROBLEM_SCALES | PROBLEM_SCALES_HEAD)
#define OF_SEQUENCE (OF_HEAD | PROBLEM_SCALES_BATCH)
#define OF_TOKEN (OF_HEAD | PROBLEM_SCALES_TOKEN)

static const unsigned int kinds[][3] = {
	{ 0, 0, 0 },
	{ OF_TENSOR, OF_TENSOR, OF_TENSOR },
	{ OF_HEAD, OF_HEAD, OF_HEAD },
	{ OF_SEQUENCE, OF_SEQUENCE, OF_SEQUENCE },
	{ OF_TOKEN | PROBLEM_SCALES_BATCH, OF_TOKEN | PROBLEM_SCALES_BATCH,
	  OF_TOKEN | PROBLEM_SCALES_BATCH },
	{ PROBLEM_SCALES | PROBLEM_SCALES_TOKEN, 0, OF_TENSOR },
	{ 0, OF_TOKEN, OF_HEAD },
};

#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const struct {
	int64_t n_q, n_k;
	int32_t heads, kv_heads, head_dim, head_dim_v;
} shapes[] = {
	{ 1, 1, 1, 1, 8, 8 },      { 1, 130, 4, 4, 64, 64 },    { 3, 5000, 4, 1, 32, 32 },
	{ 70, 70, 6, 2, 72, 40 },  { 40, 300, 2, 2, 128, 128 }, { 113, 90, 3, 1, 24, 136 },
	{ 2, 40, 8, 1, 576, 512 }, { 5, 0, 2, 1, 16, 16 },      { 40, 5000, 1, 1, 16, 16 },
};

#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void set_features(struct problem_spec *spec, size_t n)
{
	spec->causal = n % 2;
	spec->left_1 = n % 5 == 2 ? 40 : 0;
	spec->right_1 = n % 7 == 3 ? 20 : 0;
	spec->chunk = n % 9 == 4 ? 64 : 0;
	spec->prefixed = spec->causal && n % 3 == 0;
	spec->prefix[0] = 33;
	spec->alibi = n % 6 == 5;
	spec->sinks = n % 4 == 1;
	spec->softcap = n % 5 == 4 ? 20.0f : 0;
	spec->bits = n % 8 == 6;
	spec->block_rows = spec->block_keys = n % 8 == 7 ? 64 : 0;
	spec->density = 60;
	spec->of_heads = spec->of_batch = n % 16 > 7;
	spec->hostile = n % 3 == 1;
	if (n % 11 == 8)
		spec->pattern = (struct fa_attention_pattern){
			.block_tokens = 16, .local_blocks = 2, .vert_stride = 3, .head_step = 1
		};
}

static void test_shapes(void **state)
{
	for (size_t i = 0; i < N_SHAPES; i++) {
		for (size_t n = 0; n < 2 * N_KINDS; n++) {
			struct problem_spec spec = {
				.dtype = (enum fa_attention_dtype)(1 + (i + n) % 3),
				.e4m3 = true,
				.batch = 2,
				.heads = shapes[i].heads,
				.kv_heads = shapes[i].kv_heads,
				.head_dim = shapes[i].head_dim,
				.head_dim_v = shapes[i].head_dim_v,
				.n_q = shapes[i].n_q,
				.n_k = shapes[i].n_k,
				.tolerance = 4,
				.layout = (enum problem_layout)((i + n) % PROBLEM_LAYOUTS),
			};

			memcpy(spec.scales, kinds[n % N_KINDS], sizeof(spec.scales));
			set_features(&spec, i * 5 + n);
			problem_test(&spec);
		}
	}
}

/* Scales of tokens follow the packed tokens; those of sequences have a stride of their own. */
static void test_ragged(void **state)
{
	for (size_t n = 0; n < 3 * N_KINDS; n++) {
		struct problem_spec spec = {
			.dtype = (enum fa_attention_dtype)(1 + n % 3),
			.e4m3 = true,
			.batch = 4,
			.heads = 4,
			.kv_heads = 2,
			.head_dim = 48,
			.head_dim_v = 32,
			.ragged = true,
			.lengths_q = { 3, 0, 40, 7 },
			.lengths_k = { 2600, 77, 140, 3 },
			.tolerance = 4,
			.layout = (enum problem_layout)(n % PROBLEM_LAYOUTS),
		};

		if (n >= 2 * N_KINDS)
			spec.lengths_q[2] = 2; /* few rows */
		for (int t = 0; t < 3; t++)
			spec.scales[t] = kinds[n % N_KINDS][t];
		if (n % N_KINDS == 4) /* tokens are counted through the batch */
			for (int t = 0; t < 3; t++)
				spec.scales[t] = OF_TOKEN;
		set_features(&spec, n);
		problem_test(&spec);
	}
}

/* All codes, among them subnormals, 448 and NaN, and scales that overflow, are 0 or NaN: results are
 * NaN where fp64 has NaN, and else as near as sums in fp32 can be. */
static void test_hostile(void **state)
{
	static const float wild[] = { 0, -0.0f, 1e-45f, 0x1p-126f, 1e30f, -1e30f, INFINITY, NAN };
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t n = 0; n < 24; n++) {
		struct problem_spec spec = {
			.dtype = FA_ATTENTION_F32,
			.e4m3 = true,
			.batch = 1,
			.heads = 2,
			.kv_heads = 1,
			.head_dim = 16,
			.head_dim_v = 24,
			.n_q = n % 2 ? 3 : 50,
			.n_k = 60,
			.causal = true,
			.scales = { OF_TOKEN, OF_TOKEN, OF_TOKEN },
			.scale = 0x1p-20f,
		};
		const struct fa_attention_params *p;
		struct problem problem;
		double exact[24], lse;
		uint8_t *k, *v;
		bool special = n % 3 == 1;

		problem_init(&problem, &spec);
		p = &problem.params;
		k = p->k.data;
		v = p->v.data;
		for (int64_t j = 0; j < spec.n_k; j++) {
			/* Later keys are the worse: causal rows hide them. */
			bool bad = special && j > 20 && problem_one_in(6);

			for (int c = 0; c < 16; c++)
				k[j * p->k.stride_token + c] = (uint8_t)(problem_random(127) |
				                                         problem_random(2) << 7);
			for (int c = 0; c < 24; c++)
				v[j * p->v.stride_token + c] = (uint8_t)(problem_random(127) |
				                                         problem_random(2) << 7);
			if (bad)
				v[j * p->v.stride_token + (int64_t)problem_random(24)] =
					problem_one_in(2) ? 0x7f : 0xff;
			if (bad && problem_one_in(3))
				k[j * p->k.stride_token] = 0x7f;
			if (n % 3 == 2 && j > 20 && problem_one_in(6))
				((float *)problem.scales[2].data)[j * p->v_scales.stride_token] =
					wild[problem_random(8)];
		}
		for (size_t i = 0; isas[i]; i++) {
			problem_run(&problem, isas[i], PROBLEM_ASCENDING);
			for (int64_t row = 0; row < spec.n_q; row++)
				for (int32_t h = 0; h < 2; h++) {
					int64_t at = reference_q_at(p, &p->out, 0, row, h);
					double highest = 0;

					reference_row(p, 0, row, h, false, exact, &lse);
					for (int64_t j = 0; j < spec.n_k; j++)
						for (int c = 0; c < 24; c++) {
							double x = fabs(reference_v(p, 0, j, 0, c));

							if (isfinite(x) &&
							    reference_visible(p, 0, row, h, j))
								highest = fmax(highest, x);
						}
					for (int c = 0; c < 24; c++) {
						double got = reference_get(p->dtype, p->out.data,
						                           at + c);

						if (isfinite(exact[c]) ? !(fabs(got - exact[c]) <=
						                           1e-4 * highest)
						    : isnan(exact[c])  ? !isnan(got)
						                       : got != exact[c])
							fail_msg("%s on %s: row %d, dim %d: %g, "
							         "not %g",
							         problem_describe(&problem),
							         fa_cpu_isa_name(isas[i]), (int)row,
							         c, got, exact[c]);
					}
				}
		}
		problem_deinit(&problem);
	}
}

#define ISAS_MAX 8

/* Stores the largest error of out over @n_k keys, on each instruction set. */
static void errors_over(int64_t n_q, int64_t n_k, double *ret_errors)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct problem_spec spec = {
		.dtype = FA_ATTENTION_F32,
		.e4m3 = true,
		.batch = 1,
		.heads = 1,
		.kv_heads = 1,
		.head_dim = 16,
		.head_dim_v = 16,
		.n_q = n_q,
		.n_k = n_k,
		.scales = { OF_TENSOR, OF_HEAD, OF_TENSOR },
	};
	struct problem problem;
	const struct fa_attention_params *p = &problem.params;
	double exact[20][16], lse;

	problem_seed(5);
	problem_init(&problem, &spec);
	/* Values from 1 to 2, so that means do not fall with the number of keys. */
	for (int64_t j = 0; j < n_k; j++)
		for (int c = 0; c < 16; c++)
			((uint8_t *)p->v.data)[reference_k_at(p, &p->v, 0, j, 0) + c] =
				(uint8_t)(0x38 + problem_random(8));
	*(float *)problem.scales[2].data = 1.1f;
	for (int64_t row = 0; row < n_q; row++)
		reference_row(p, 0, row, 0, false, exact[row], &lse);
	for (size_t n = 0; isas[n]; n++) {
		ret_errors[n] = 0;
		problem_run(&problem, isas[n], PROBLEM_ASCENDING);
		for (int64_t row = 0; row < n_q; row++)
			for (int c = 0; c < 16; c++) {
				int64_t at = reference_q_at(p, &p->out, 0, row, 0) + c;
				double got = reference_get(p->dtype, p->out.data, at);

				ret_errors[n] = fmax(ret_errors[n], fabs(got - exact[row][c]));
			}
	}
	problem_deinit(&problem);
}

/* Sums are kept in two levels: over 128k keys the error is at most twice that over 1k. */
static void test_many_keys(void **state)
{
	static const int64_t rows[] = { 2, 20 };
	const struct fa_cpu_isa *const *isas = problem_isas();
	double few[ISAS_MAX], many[ISAS_MAX];

	for (size_t r = 0; r < 2; r++) {
		errors_over(rows[r], 1 << 10, few);
		errors_over(rows[r], 1 << 17, many);
		for (size_t n = 0; isas[n]; n++)
			if (!(few[n] > 0 && many[n] <= 2 * few[n]))
				fail_msg("%s: error %g over 128k keys, %g over 1k",
				         fa_cpu_isa_name(isas[n]), many[n], few[n]);
	}
}

/* A row over many keys is divided, also where there are many KV heads. */
static void test_tiles(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct fa_attention_params params = {
		.dtype = FA_ATTENTION_BF16,
		.e4m3 = true,
		.batch = 64,
		.heads = 1,
		.kv_heads = 1,
		.head_dim = 512,
		.head_dim_v = 512,
		.seqlen_q = 1,
		.seqlen_k = 1 << 17,
		.scale = 1,
		.window_left = -1,
		.window_right = -1,
	};

	for (size_t n = 0; isas[n]; n++) {
		params.seqlen_q = 12;
		assert_true(fa_cpu_attention_tiles(isas[n], &params) >= 256);
		assert_in_range(fa_cpu_attention_workspace_bytes(isas[n], &params), 1,
		                FA_CPU_WORKSPACE_BYTES_MAX);
		params.seqlen_q = 1;
		assert_true(fa_cpu_attention_tiles(isas[n], &params) >= 256);
	}
}

static void test_refusals(void **state)
{
	float scale = 1;
	struct fa_attention_params params = {
		.dtype = FA_ATTENTION_BF16,
		.batch = 1,
		.heads = 1,
		.kv_heads = 1,
		.head_dim = 8,
		.head_dim_v = 8,
		.seqlen_q = 1,
		.seqlen_k = 1,
		.scale = 1,
		.window_left = -1,
		.window_right = -1,
		.k_scales = { .data = &scale },
	};
	char text[256] = "";

	assert_int_equal(fa_attention_check(&params, text, sizeof(text)), -EINVAL);
	assert_string_equal(text, "k_scales is given, but q, k and v are not e4m3");
	params.e4m3 = true;
	assert_int_equal(fa_attention_check(&params, text, sizeof(text)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes),  cmocka_unit_test(test_ragged),
		cmocka_unit_test(test_hostile), cmocka_unit_test(test_many_keys),
		cmocka_unit_test(test_tiles),   cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
