/* Where a token's rows lie in the pool (kernels/paged.h). Pure functions, any thread. */
#pragma once

#include "kernels/paged.h"

static inline int64_t fa_cpu_element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

/* Returns the scales of heads; NULL: tokens have theirs. */
static inline const float *fa_cpu_head_scales(const struct fa_paged_cache *cache, bool is_v,
                                              int64_t layer)
{
	const float *scales = is_v && cache->v_offset ? cache->v_scales : cache->k_scales;

	return scales ? scales + layer * cache->kv_heads : NULL;
}

struct fa_cpu_page_row {
	char *k, *v; /* v also if V is the front of K */
	int64_t k_bytes, v_bytes;
	int64_t k_stride, v_stride;
	/* Scales of tokens, for head 0; NULL: there are none. */
	float *k_scale, *v_scale;
	int64_t scale_stride; /* floats */
};

static inline void fa_cpu_page_row_find(const struct fa_paged_cache *cache, int64_t layer,
                                        const uint32_t *table, uint32_t table_start, int64_t token,
                                        struct fa_cpu_page_row *ret_row)
{
	bool codes = cache->store != FA_PAGED_PLAIN;
	int64_t bytes = codes ? 1 : fa_cpu_element_bytes(cache->dtype),
		at = token % cache->page_tokens;
	uint32_t slot = table[table_start + (uint32_t)(token / cache->page_tokens)];
	char *page = (char *)cache->pool + (int64_t)slot * FA_PAGED_SLOT_BYTES +
	             layer * cache->layer_stride;
	int64_t k_row = cache->head_dim * bytes;
	int64_t v_row = cache->v_offset ? cache->head_dim_v * bytes : k_row;

	*ret_row = (struct fa_cpu_page_row){
		.k = page + at * k_row,
		.v = page + cache->v_offset + at * v_row,
		.k_bytes = k_row,
		.v_bytes = cache->head_dim_v * bytes,
		.k_stride = cache->page_tokens * k_row,
		.v_stride = cache->page_tokens * v_row,
	};
	if (codes && !cache->k_scales) {
		ret_row->k_scale = (float *)(page + cache->kv_heads * ret_row->k_stride) + at;
		ret_row->v_scale = (float *)(page + cache->v_offset +
		                             cache->kv_heads * ret_row->v_stride) +
		                   at;
		ret_row->scale_stride = cache->page_tokens;
	}
}
