/* The request that tests of plans over pages vary: causal attention of 32 heads over a cache of bf16. */
#pragma once

#include "kernels/paged.h"

#include <stdint.h>

static uint64_t random_state = 88172645463325252ull;

/* xorshift: a number below @n. */
static inline uint32_t below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)((random_state >> 20) % n);
}

static inline struct fa_paged_cache usual_cache(void)
{
	return (struct fa_paged_cache){
		.dtype = FA_ATTENTION_BF16,
		.pool = (void *)(uintptr_t)(1 << 20),
		.layers = 2,
		.kv_heads = 8,
		.head_dim = 128,
		.head_dim_v = 128,
		.page_tokens = 64,
		.layer_stride = 1 << 20,
		.v_offset = 1 << 19,
	};
}

static inline struct fa_paged_attention usual_attention(const struct fa_paged_cache *cache,
                                                        const struct fa_paged_step *step)
{
	return (struct fa_paged_attention){
		.cache = cache,
		.step = step,
		.heads = 32,
		.q = { NULL, 0, 32 * 128, 128 },
		.scale = 1,
		.causal = true,
		.window_left = -1,
		.window_right = -1,
	};
}
