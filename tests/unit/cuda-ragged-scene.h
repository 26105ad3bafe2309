/* A causal ragged batch, made sequence by sequence, and its launch, planned without a GPU. */
#pragma once

#include "kernels/cuda/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define BATCH_MAX 64

static const struct fa_cuda_chip hopper = {
	.arch = 90, .shared_bytes_max = 232448, .l2_bytes = 50 << 20, .sms = 132
};

static struct {
	uint32_t cu_q[BATCH_MAX + 1], cu_k[BATCH_MAX + 1];
	struct fa_attention_params params;
	struct fa_cuda_launch launch;
} batch;

/* Makes the batch without sequences. */
static inline void make(int dim, int heads, int kv_heads)
{
	static char memory[4][64] __attribute__((aligned(64)));
	struct fa_attention_params *const params = &batch.params;
	struct fa_attention_tensor *tensors[] = { &params->q, &params->k, &params->v,
		                                  &params->out };

	*params = (struct fa_attention_params){
		.dtype = FA_ATTENTION_BF16,
		.heads = heads,
		.kv_heads = kv_heads,
		.head_dim = dim,
		.head_dim_v = dim,
		.cu_seqlens_q = batch.cu_q,
		.cu_seqlens_k = batch.cu_k,
		.scale = (float)(1 / sqrt(dim)),
		.causal = true,
		.window_left = -1,
		.window_right = -1,
	};
	for (size_t i = 0; i < 4; i++)
		*tensors[i] = (struct fa_attention_tensor){
			.data = memory[i],
			.stride_token = (int64_t)(i == 1 || i == 2 ? kv_heads : heads) * dim,
			.stride_head = dim,
		};
}

/* Appends a sequence. */
static inline void add(uint32_t n_q, uint32_t n_k)
{
	struct fa_attention_params *const params = &batch.params;
	const int32_t b = params->batch++;

	batch.cu_q[b + 1] = batch.cu_q[b] + n_q;
	batch.cu_k[b + 1] = batch.cu_k[b] + n_k;
	params->seqlen_q = n_q > params->seqlen_q ? n_q : params->seqlen_q;
	params->seqlen_k = n_k > params->seqlen_k ? n_k : params->seqlen_k;
}

static inline void plan_on(const struct fa_cuda_chip *chip)
{
	char text[256] = "";

	assert_int_equal(fa_attention_check(&batch.params, text, sizeof(text)), 0);
	assert_int_equal(
		fa_cuda_attention_plan(chip, &batch.params, text, sizeof(text), &batch.launch), 0);
}
