/*
 * MLA in plain form: 192 columns of Q and K, 128 of V. Prompts and extends of few and no keys, odd
 * lengths, logits that rise by hundreds, V with NaN, sinks and ragged batches.
 */
#include "tests/gpu/cases.h"

#include <math.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct fa_attention_params plain(int dtype, int heads, int kv_heads)
{
	return (struct fa_attention_params){
		.dtype = (enum fa_attention_dtype)dtype,
		.batch = 1,
		.heads = heads,
		.kv_heads = kv_heads,
		.head_dim = 192,
		.head_dim_v = 128,
		.scale = (float)(1 / sqrt(192)),
		.window_left = -1,
		.window_right = -1,
	};
}

static void check(struct fa_cases *cases, const struct fa_attention_params *params,
                  const uint32_t *cu_q, const uint32_t *cu_k, struct fa_request_layout layout,
                  bool sinks, const float *nats)
{
	struct fa_request request;

	fa_request_make(cases->gpu, &request, params, cu_q, cu_k, layout, false, sinks,
	                &cases->random);
	if (nats)
		fa_request_raise(cases->gpu, &request, nats);
	fa_cases_check(cases, &request);
	fa_request_free(cases->gpu, &request);
}

/* Of key @i of @n, in nats. Kernels go from the last key to the first. */
static float raised(int kind, int i, int n)
{
	switch (kind) {
	case 0:
		return i == 0 || i == n / 2 ? 300 : 0;
	case 1:
		return 300.f * (float)(n - 1 - i) / (float)n;
	case 2:
		return 300.f * (float)i / (float)n;
	default:
		return 130.f * (float)((n - 1 - i) * 3 / n);
	}
}

void fa_case_plain(struct fa_cases *cases)
{
	static const int lengths[][2] = { { 1, 1 },     { 3, 0 },     { 0, 5 },     { 64, 2999 },
		                          { 65, 129 },  { 128, 128 }, { 513, 511 }, { 300, 1501 },
		                          { 16, 4096 }, { 900, 900 }, { 129, 1 },   { 1, 2500 } };
	static const uint32_t cu_q[] = { 0, 5, 5, 6, 106, 119, 183, 210, 460 };
	static const uint32_t cu_k[] = { 0, 300, 333, 334, 634, 1047, 1111, 1611, 1861 };
	static float nats[3000];

	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++) {
		for (int n = 0; n < (int)COUNT(lengths) * 2; n++) {
			struct fa_attention_params params = plain(dtype, n % 3 ? 3 : 8,
			                                          n % 3 ? 3 : 2);
			const struct fa_request_layout layout = { .head_major = n % 4 == 3,
				                                  .gap = n % 5 == 2 ? 8 : 0,
				                                  .broken = n % 7 == 6 ? 3 : 0 };

			params.seqlen_q = lengths[n / 2][0];
			params.seqlen_k = lengths[n / 2][1];
			params.batch = n % 5 == 4 ? 3 : 1;
			params.causal = n % 2;
			params.window_left = n % 11 == 7 ? 100 : -1;
			check(cases, &params, NULL, NULL, layout, n % 3 == 1, NULL);
		}
		for (int n = 0; n < 4 * 4; n++) {
			struct fa_attention_params params = plain(dtype, 2, 2);
			const struct fa_request_layout layout = { .broken = n == 5 ? 3 : 0 };
			const int n_k = n / 4 % 2 ? 2999 : 700;

			params.seqlen_q = n / 4 % 2 ? 64 : 700;
			params.seqlen_k = n_k;
			params.causal = n / 8;
			for (int i = 0; i < n_k; i++)
				nats[i] = raised(n % 4, i, n_k);
			check(cases, &params, NULL, NULL, layout, n % 4 == 2, nats);
		}
		for (int mask = 0; mask < 3; mask++) {
			struct fa_attention_params params = plain(dtype, 4, mask == 1 ? 1 : 4);
			/* NaN in one sequence does not affect the others. */
			const struct fa_request_layout layout = { .broken = mask ? 0 : 12 };

			params.batch = COUNT(cu_q) - 1;
			params.causal = mask == 1;
			params.window_left = mask == 2 ? 300 : -1;
			params.window_right = mask == 2 ? 7 : -1;
			check(cases, &params, cu_q, cu_k, layout, mask == 2, NULL);
		}
	}
}
