/*
 * The latent cache of MLA in absorbed form (576/512, V the front of K, one KV head), of each kind of
 * pages: a prompt, then steps of few tokens, against fp64. All numbers are multiples of 1/16 that each
 * kind of pages holds exactly.
 */
#include "client/faclient.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	DIM = 576,
	DIM_V = 512,
	HEADS = 16,
	TOKENS = 150,
};

static const uint32_t steps[] = { 140, 1, 2, 1, 6 };

/* Of a multiple of 1/16 below 2 in magnitude: bf16 and fp16 have the bits of fp32's mantissa. */
static uint16_t encode(enum fa_dtype dtype, float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	if (dtype == FA_BF16 || x == 0)
		return (uint16_t)(bits >> 16);
	return (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 |
	                  (bits >> 13 & 0x3ff));
}

static double decode(enum fa_dtype dtype, uint16_t bits)
{
	const int mantissa_bits = dtype == FA_BF16 ? 7 : 10, bias = dtype == FA_BF16 ? 127 : 15;
	const int exponent = (bits & 0x7fff) >> mantissa_bits;
	const int mantissa = bits & ((1 << mantissa_bits) - 1);
	const double size = exponent ? ldexp((1 << mantissa_bits) + mantissa,
	                                     exponent - bias - mantissa_bits)
	                             : ldexp(mantissa, 1 - bias - mantissa_bits);

	return bits & 0x8000 ? -size : size;
}

/* Sixteenths, from -15 to 15, and 28 in front of each row: e4m3 then has a scale of 2^-8. */
static void fill(uint64_t *state, size_t rows, int dim, float *ret_numbers)
{
	for (size_t row = 0; row < rows; ++row)
		for (int d = 0; d < dim; ++d) {
			*state = *state * 6364136223846793005u + 1442695040888963407u;
			ret_numbers[row * (size_t)dim + (size_t)d] =
				d == 0 ? 1.75f : (float)((int)(*state >> 40) % 31 - 15) / 16;
		}
}

static void reference(const float *q, const float *k, uint32_t first, uint32_t row, int head,
                      double *ret_out)
{
	static double weights[TOKENS];
	double sum = 0;

	memset(ret_out, 0, DIM_V * sizeof(*ret_out));
	for (uint32_t key = 0; key <= first + row; ++key) {
		double dot = 0;

		for (int d = 0; d < DIM; ++d)
			dot += (double)q[((size_t)row * HEADS + (size_t)head) * DIM + (size_t)d] *
			       k[(size_t)key * DIM + (size_t)d];
		weights[key] = exp(dot / sqrt(DIM));
		sum += weights[key];
	}
	for (uint32_t key = 0; key <= first + row; ++key)
		for (int d = 0; d < DIM_V; ++d)
			ret_out[d] += weights[key] / sum * k[(size_t)key * DIM + (size_t)d];
}

static void check(enum fa_dtype dtype, const uint16_t *out, const float *q, const float *k,
                  uint32_t first, uint32_t n)
{
	static double want[DIM_V];

	for (uint32_t row = 0; row < n; ++row)
		for (int head = 0; head < HEADS; ++head) {
			reference(q, k, first, row, head, want);
			for (int d = 0; d < DIM_V; ++d) {
				const double got = decode(
					dtype, out[((size_t)row * HEADS + (size_t)head) * DIM_V +
				                   (size_t)d]);

				if (!(fabs(got - want[d]) <= 0.016))
					fa_test_fail(__FILE__, __LINE__,
					             "token %u, head %d, %d: %g; expected %g",
					             first + row, head, d, got, want[d]);
			}
		}
}

static void encode_all(enum fa_dtype dtype, const float *from, size_t n, uint16_t *to)
{
	for (size_t i = 0; i < n; ++i)
		to[i] = encode(dtype, from[i]);
}

static void run(enum fa_dtype dtype, enum fa_store store)
{
	static float q[TOKENS * HEADS * DIM], k[TOKENS * DIM];
	struct fa_cache_options options = { .size = sizeof(options),
		                            .flags = FA_CACHE_V_IN_K,
		                            .dtype = dtype,
		                            .store = store,
		                            .layers = 1,
		                            .kv_heads = 1,
		                            .head_dim = DIM,
		                            .head_dim_v = DIM_V,
		                            .page_tokens = 32 };
	const size_t k_at = sizeof(q) / 2, out_at = k_at + sizeof(k) / 2;
	struct fa_step_item item = { .sequence = 0 };
	struct fa_buffer *buffer;
	uint64_t cache, state = 7;
	uint32_t first = 0;
	char *data;

	if (store != FA_STORE_PLAIN)
		options.flags |= FA_CACHE_TOKEN_SCALES;
	must(fa_cache_create(single_client, &options, &cache), "cache");
	must(fa_sequence_create(single_client, cache, &item.sequence), "sequence");
	must(fa_buffer_new(single_client, out_at + sizeof(q), 0, &buffer), "buffer");
	data = fa_buffer_data(buffer);
	fill(&state, TOKENS, DIM, k);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); ++i) {
		const uint32_t n = steps[i];
		const int64_t q_shape[] = { n, HEADS, DIM }, k_shape[] = { n, 1, DIM };
		const int64_t out_shape[] = { n, HEADS, DIM_V };
		struct fa_step_attend attend = { .size = sizeof(attend), .flags = FA_STEP_CAUSAL };
		struct fa_step *step;

		fill(&state, (size_t)n * HEADS, DIM, q);
		encode_all(dtype, q, (size_t)n * HEADS * DIM, (uint16_t *)data);
		encode_all(dtype, k + (size_t)first * DIM, (size_t)n * DIM,
		           (uint16_t *)(data + k_at));
		memset(data + out_at, 0xff, (size_t)n * HEADS * DIM_V * 2);
		fa_tensor_init(&attend.q, buffer, 0, dtype, 3, q_shape);
		fa_tensor_init(&attend.k_new, buffer, k_at, dtype, 3, k_shape);
		fa_tensor_init(&attend.out, buffer, out_at, dtype, 3, out_shape);
		item.n_new = n;
		step = single_begin(&item, 1);
		must(fa_step_attend(step, &attend, NULL), "attend");
		must(fa_step_commit(step, NULL, NULL), "commit");
		fa_step_free(step);
		check(dtype, (const uint16_t *)(data + out_at), q, k, first, n);
		first += n;
	}
	fa_check_eq(first, TOKENS);
	must(fa_cache_remove(single_client, cache), "remove");
	fa_buffer_free(buffer);
}

static void test_bf16(void **state)
{
	run(FA_BF16, FA_STORE_PLAIN);
}

static void test_fp16(void **state)
{
	run(FA_F16, FA_STORE_PLAIN);
}

static void test_e4m3(void **state)
{
	run(FA_BF16, FA_STORE_E4M3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bf16),
		cmocka_unit_test(test_fp16),
		cmocka_unit_test(test_e4m3),
	};

	return cmocka_run_group_tests_name("kv-latent", tests, single_setup, single_teardown);
}
