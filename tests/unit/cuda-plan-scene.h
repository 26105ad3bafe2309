/* Chips of several kinds, and a request whose launch is planned for them without a GPU. */
#pragma once

#include "kernels/cuda/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Chips with the limits that their drivers report. */
static const struct fa_cuda_chip hopper = {
	.arch = 90, .shared_bytes_max = 232448, .l2_bytes = 50 << 20, .sms = 132
};
static const struct fa_cuda_chip ampere = {
	.arch = 80, .shared_bytes_max = 166912, .l2_bytes = 40 << 20, .sms = 108
};
static const struct fa_cuda_chip small = {
	.arch = 86, .shared_bytes_max = 101376, .l2_bytes = 6 << 20, .sms = 84
};
static const struct fa_cuda_chip later = {
	.arch = 120, .shared_bytes_max = 101376, .l2_bytes = 96 << 20, .sms = 170
};
static const struct fa_cuda_chip *const chips[] = { &hopper, &ampere, &small, &later };
static const struct fa_cuda_chip turing = { .arch = 75,
	                                    .shared_bytes_max = 65536,
	                                    .l2_bytes = 4 << 20 };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* [2][300][6][@dim], with 2 KV heads. */
static inline struct fa_attention_params usual(enum fa_attention_dtype dtype, int dim)
{
	static char memory[4][64] __attribute__((aligned(64)));
	struct fa_attention_params params = {
		.dtype = dtype,
		.batch = 2,
		.heads = 6,
		.kv_heads = 2,
		.head_dim = dim,
		.head_dim_v = dim,
		.seqlen_q = 300,
		.seqlen_k = 300,
		.scale = (float)(1 / sqrt(dim)),
		.window_left = -1,
		.window_right = -1,
	};
	struct fa_attention_tensor *tensors[] = { &params.q, &params.k, &params.v, &params.out };

	for (size_t i = 0; i < 4; i++) {
		const int heads = i == 1 || i == 2 ? 2 : 6;

		*tensors[i] = (struct fa_attention_tensor){
			.data = memory[i],
			.stride_batch = 300ll * heads * dim,
			.stride_token = (int64_t)heads * dim,
			.stride_head = dim,
		};
	}
	return params;
}

static inline struct fa_cuda_launch plan_on(const struct fa_cuda_chip *chip,
                                            const struct fa_attention_params *params)
{
	struct fa_cuda_launch launch;
	char text[256] = "";
	int r;

	assert_int_equal(fa_attention_check(params, text, sizeof(text)), 0);
	r = fa_cuda_attention_plan(chip, params, text, sizeof(text), &launch);
	if (r < 0)
		fail_msg("%s", text);
	return launch;
}

static inline struct fa_cuda_launch plan(const struct fa_attention_params *params)
{
	return plan_on(&hopper, params);
}

static inline enum fa_cuda_kind kind(const struct fa_attention_params *params)
{
	return plan(params).kernel->kind;
}
