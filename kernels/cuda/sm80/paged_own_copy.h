/*
 * Copies tokens between the pool and a client's own pages, all layers in one launch. A block has a
 * strip of 16 tokens of one pool page, of K or V of a layer.
 */
#pragma once

#include "kernels/cuda/sm80/paged_append_quantised.h"

#include <stdint.h>

/* Loads in flight of a thread. */
#define FA_OWN_COPY_EACH 4

struct fa_own_copy_shared {
	/* Places of the strip's tokens in the client's memory; -1: not copied. */
	int64_t places[FA_CUDA_PAGED_STRIP];
};

struct fa_own_copy_side {
	char *pool; /* the strip's first token, head 0 */
	char *own;  /* the client's tensor */
	int64_t pool_head, own_head;
	uint32_t pool_row;
	int32_t dim;
	uint32_t layer; /* counted from the first layer that is copied */
	bool is_v;
};

__device__ __forceinline__ struct fa_own_copy_side
fa_own_copy_begin(const struct fa_cuda_paged_own_copy &args, struct fa_own_copy_shared &shared)
{
	const uint32_t strip = args.first / FA_CUDA_PAGED_STRIP + blockIdx.x;
	const bool both = args.k_data && args.v_data;
	const bool is_v = both ? blockIdx.y % 2 : !args.k_data;
	const struct fa_cuda_own_strides &strides = is_v ? args.v_strides : args.k_strides;
	const struct fa_token_place place = fa_token_find(
		args.pages, args.pages.table, args.table_start, strip * FA_CUDA_PAGED_STRIP);
	struct fa_own_copy_side side;

	if (threadIdx.x < FA_CUDA_PAGED_STRIP) {
		const uint32_t token = strip * FA_CUDA_PAGED_STRIP + threadIdx.x;
		int64_t at = -1;

		if (token >= args.first && token < args.end) {
			const uint32_t p = args.offset + (token - args.first);
			const uint32_t page = p / args.own_page_tokens;

			at = args.own_pages[page] * strides.page +
			     (p - page * args.own_page_tokens) * strides.token;
		}
		shared.places[threadIdx.x] = at;
	}
	side.is_v = is_v;
	side.layer = both ? blockIdx.y / 2 : blockIdx.y;
	side.dim = is_v ? args.head_dim_v : args.head_dim;
	side.pool_row = is_v ? args.pages.v_row : args.pages.k_row;
	side.pool_head = (int64_t)args.pages.page_strips * FA_CUDA_PAGED_STRIP * side.pool_row;
	side.pool = (is_v ? args.pages.v + place.v : args.pages.k + place.k) +
	            side.layer * args.layer_stride;
	side.own_head = strides.head;
	side.own = (is_v ? args.v_data : args.k_data)[side.layer];
	__syncthreads(); /* places are written */
	return side;
}

/* Units of a row, then the strip's tokens, then heads follow one another. */
template <class U>
__device__ __forceinline__ void fa_own_copy_units(const struct fa_cuda_paged_own_copy &args,
                                                  const struct fa_own_copy_side &side,
                                                  const struct fa_own_copy_shared &shared)
{
	const uint32_t bytes = args.dtype == FA_DTYPE_F32 ? 4 : 2;
	const uint32_t per_row = (uint32_t)side.dim * bytes / sizeof(U);
	const uint32_t rows = (uint32_t)args.kv_heads * FA_CUDA_PAGED_STRIP;
	const uint32_t step_rows = FA_CUDA_TOKENS_THREADS / per_row;
	const uint32_t step_units = FA_CUDA_TOKENS_THREADS % per_row;
	uint32_t row = threadIdx.x / per_row, unit = threadIdx.x % per_row;

	while (row < rows) {
		U values[FA_OWN_COPY_EACH];
		char *targets[FA_OWN_COPY_EACH];

#pragma unroll
		for (int i = 0; i < FA_OWN_COPY_EACH; i++) {
			const uint32_t token = row % FA_CUDA_PAGED_STRIP;
			const uint32_t head = row / FA_CUDA_PAGED_STRIP;
			const int64_t place = row < rows ? shared.places[token] : -1;
			char *const pool = side.pool + head * side.pool_head +
			                   token * side.pool_row + unit * sizeof(U);
			char *const own = side.own + place + head * side.own_head +
			                  unit * sizeof(U);

			targets[i] = NULL;
			if (place >= 0) {
				values[i] = *(const U *)(args.writes ? own : pool);
				targets[i] = args.writes ? pool : own;
			}
			row += step_rows;
			unit += step_units;
			if (unit >= per_row) {
				unit -= per_row;
				row++;
			}
		}
#pragma unroll
		for (int i = 0; i < FA_OWN_COPY_EACH; i++)
			if (targets[i])
				*(U *)targets[i] = values[i];
	}
}

__device__ __forceinline__ void fa_paged_own_copy(const struct fa_cuda_paged_own_copy &args)
{
	static __shared__ struct fa_own_copy_shared shared;
	const struct fa_own_copy_side side = fa_own_copy_begin(args, shared);

	if (args.unit == 16)
		fa_own_copy_units<uint4>(args, side, shared);
	else if (args.unit == 8)
		fa_own_copy_units<uint2>(args, side, shared);
	else if (args.unit == 4)
		fa_own_copy_units<uint32_t>(args, side, shared);
	else
		fa_own_copy_units<uint16_t>(args, side, shared);
}

/* A warp per row. */
__device__ __forceinline__ void fa_paged_own_copy_codes(const struct fa_cuda_paged_own_copy &args)
{
	static __shared__ struct fa_own_copy_shared shared;
	const struct fa_own_copy_side side = fa_own_copy_begin(args, shared);
	const uint32_t page_tokens = args.pages.page_strips * FA_CUDA_PAGED_STRIP;
	const uint32_t first = (args.first / FA_CUDA_PAGED_STRIP + blockIdx.x) *
	                       FA_CUDA_PAGED_STRIP;
	const uint32_t page = (uint32_t)(first / FA_CUDA_PAGED_STRIP * args.pages.page_magic >> 32);
	const uint32_t in_page = first - page * page_tokens;
	const float *const head_scales = side.is_v ? args.v_scales : args.k_scales;
	/* The scale of the strip's first token, if each token has its own. */
	float *const token_scales = (float *)(side.pool - (int64_t)in_page * side.pool_row +
	                                      (side.is_v ? args.v_scales_at : args.k_scales_at)) +
	                            in_page;

	for (uint32_t row = threadIdx.x / 32; row < (uint32_t)args.kv_heads * FA_CUDA_PAGED_STRIP;
	     row += FA_CUDA_TOKENS_THREADS / 32) {
		const uint32_t token = row % FA_CUDA_PAGED_STRIP;
		const uint32_t head = row / FA_CUDA_PAGED_STRIP;
		char *const pool = side.pool + head * side.pool_head + token * side.pool_row;
		char *const own = side.own + shared.places[token] + head * side.own_head;
		float *token_scale = NULL;
		float scale, values[FA_QUANTISE_EACH];

		if (shared.places[token] < 0)
			continue;
		if (head_scales)
			scale = head_scales[side.layer * (uint32_t)args.kv_heads + head];
		else
			token_scale = token_scales + (int64_t)head * page_tokens + token;
		if (!args.writes) {
			fa_dequantise_row(args.dtype, args.store, pool, side.dim,
			                  token_scale ? *token_scale : scale, own);
			continue;
		}
#pragma unroll
		for (int n = 0; n < FA_QUANTISE_EACH; n++) {
			const int32_t i = n * 32 + (int32_t)(threadIdx.x % 32);

			values[n] = i < side.dim ? fa_element_get(args.dtype, own, i) : 0;
		}
		fa_quantise_values(values, args.store, side.dim, scale, token_scale, pool);
	}
}
