/*
 * Append and read of quantised pages (kernels/paged.h): a warp per head's row of K or V. Gives the
 * bits of kernels/quantise.h, except where the rotary embedding rounds differently.
 */
#pragma once

#include "kernels/cuda/sm80/paged_tokens.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

#define FA_QUANTISE_EACH 18 /* elements of a lane: rows have at most 576 */

/* ---- codes */

__device__ __forceinline__ uint8_t fa_e4m3_of(float x)
{
	const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffff;
	uint32_t code;

	if (magnitude > 0x7f800000)
		return 0x7f;
	if (magnitude < 0x3c800000) /* 2^-6: the sum's last bit is worth 2^-9 */
		code = __float_as_uint(__uint_as_float(magnitude) + 16384.0f) -
		       __float_as_uint(16384.0f);
	else if (magnitude > 0x43e00000) /* 448 */
		code = 0x7e;
	else
		code = (magnitude + 0x7ffff + (magnitude >> 20 & 1) - (120u << 23)) >> 20;
	return (uint8_t)(code | (bits >> 24 & 0x80));
}

__device__ __forceinline__ uint8_t fa_int8_of(float x)
{
	if (isnan(x))
		return 0;
	/* The sum's last bit is worth 1. */
	return (uint8_t)__float_as_uint(fminf(fmaxf(x, -127.0f), 127.0f) + 12582912.0f);
}

__device__ __forceinline__ float fa_code_value(int32_t store, uint8_t code)
{
	const uint32_t magnitude = code & 0x7f;
	float x;

	if (store != FA_STORE_E4M3)
		return (float)(int8_t)code;
	if (magnitude == 0x7f)
		return __uint_as_float(0x7fc00000);
	x = __uint_as_float(magnitude << 20) * 1.329227995784916e36f; /* 2^120 */
	return __uint_as_float(__float_as_uint(x) | (code & 0x80u) << 24);
}

/* ---- rows */

/* The lane's elements of a row, 0 beyond @dim, rotated if @turns are given. A whole warp. */
__device__ __forceinline__ void fa_append_values(const struct fa_cuda_paged_append &args,
                                                 const char *row, int32_t dim, const float2 *turns,
                                                 float (&ret_values)[FA_QUANTISE_EACH])
{
	const int32_t half = args.rotary.half, first = args.rotary.first, dtype = args.dtype;
	const int32_t lane = threadIdx.x % 32;

#pragma unroll
	for (int n = 0; n < FA_QUANTISE_EACH; n++)
		ret_values[n] = n * 32 + lane < dim ? fa_element_get(dtype, row, n * 32 + lane) : 0;
	if (!turns)
		return;
#pragma unroll
	for (int n = 0; n < FA_QUANTISE_EACH; n++) {
		const int32_t at = n * 32 + lane - first; /* in the rotated part */

		/* Or the compiler loads all at once, for which registers are too few. */
		if (n % 3 == 0)
			__syncwarp();
		if (at >= 0 && at < 2 * half) {
			const bool interleaved = args.rotary.interleaved;
			const bool is_y = interleaved ? at % 2 : at >= half;
			const int32_t other = interleaved ? at ^ 1 : is_y ? at - half : at + half;
			const int32_t angle = interleaved ? at / 2 : is_y ? other : at;
			const float mine = ret_values[n],
				    theirs = fa_element_get(dtype, row, first + other);
			float x, y;

			fa_rotate(is_y ? theirs : mine, is_y ? mine : theirs, turns[angle], x, y);
			ret_values[n] = is_y ? y : x;
		}
	}
}

/* Quantises a warp's row: a lane has elements lane, lane + 32, ...; 0 beyond @dim. @token_scale:
 * for the token's scale; NULL: @scale is the head's. */
__device__ __forceinline__ void fa_quantise_values(float (&values)[FA_QUANTISE_EACH], int32_t store,
                                                   int32_t dim, float scale, float *token_scale,
                                                   char *to)
{
	const int32_t lane = threadIdx.x % 32;
	float highest = 0, inverse;
	bool has_nan = false;

#pragma unroll
	for (int n = 0; n < FA_QUANTISE_EACH; n++) {
		values[n] = values[n] > FLT_MAX ? FLT_MAX : values[n];
		values[n] = values[n] < -FLT_MAX ? -FLT_MAX : values[n];
		has_nan |= isnan(values[n]);
		highest = fmaxf(highest, fabsf(values[n]));
	}
	if (token_scale) {
#pragma unroll
		for (int mask = 16; mask > 0; mask /= 2)
			highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, mask));
		has_nan = __any_sync(~0u, has_nan);
		scale = highest / (store == FA_STORE_E4M3 ? 448.0f : 127.0f);
		if (scale < FLT_MIN)
			scale = 0;
	}
	inverse = scale > 0 ? 1 / scale : 0;
#pragma unroll
	for (int n = 0; n < FA_QUANTISE_EACH; n++) {
		const int32_t i = n * 32 + lane;
		const float x = __fmul_rn(values[n], inverse);

		if (i < dim)
			to[i] = (char)(store == FA_STORE_E4M3 ? fa_e4m3_of(x) : fa_int8_of(x));
	}
	if (token_scale && lane == 0)
		*token_scale = has_nan && store != FA_STORE_E4M3 ? __uint_as_float(0x7fc00000)
		                                                 : scale;
}

/* Called by a whole warp. */
__device__ __forceinline__ void fa_quantise_row(const struct fa_cuda_paged_append &args,
                                                int32_t store, const char *from,
                                                const float2 *turns, int32_t dim, float scale,
                                                float *token_scale, char *to)
{
	float values[FA_QUANTISE_EACH];

	fa_append_values(args, from, dim, turns, values);
	fa_quantise_values(values, store, dim, scale, token_scale, to);
}

__device__ __forceinline__ void fa_dequantise_row(int32_t dtype, int32_t store, const char *from,
                                                  int32_t dim, float scale, char *to)
{
#pragma unroll 1
	for (int32_t i = threadIdx.x % 32; i < dim; i += 32)
		fa_element_set(dtype, to, i,
		               __fmul_rn(fa_code_value(store, (uint8_t)from[i]), scale));
}

struct fa_quantised_shared {
	uint32_t tokens[FA_CUDA_APPEND_TOKENS];
};

__device__ __forceinline__ void fa_quantised_find(const struct fa_cuda_paged_append &args,
                                                  struct fa_quantised_shared &places, int32_t first,
                                                  int32_t count)
{
	const uint32_t page_tokens = args.pages.page_strips * FA_CUDA_PAGED_STRIP;

	for (int32_t b = threadIdx.x; b < args.batch; b += FA_CUDA_TOKENS_THREADS) {
		const struct fa_cuda_paged_item &item = args.items[b];
		const int32_t begin = max((int32_t)item.first_q, first);
		const int32_t end = min((int32_t)(item.first_q + item.n_q), first + count);

		for (int32_t token = begin; token < end; token++) {
			const uint32_t of_sequence = item.append + (token - (int32_t)item.first_q);
			const uint32_t page = (uint32_t)(of_sequence / FA_CUDA_PAGED_STRIP *
			                                         args.pages.page_magic >>
			                                 32);

			places.tokens[token - first] = of_sequence - page * page_tokens;
		}
	}
}

template <bool READ>
__device__ __forceinline__ void
fa_paged_append_codes(const struct fa_cuda_paged_append_quantised &all)
{
	static __shared__ struct fa_append_shared shared;
	static __shared__ struct fa_quantised_shared places;
	const struct fa_cuda_paged_append &args = all.append;
	const struct fa_cuda_paged_quantised &quantised = all.quantised;
	const int32_t first = blockIdx.x * FA_CUDA_APPEND_TOKENS;
	const int32_t count = min(FA_CUDA_APPEND_TOKENS, args.tokens - first);
	const int32_t lane = threadIdx.x % 32;
	const uint32_t head_tokens = args.pages.page_strips * FA_CUDA_PAGED_STRIP;
	const bool turns = !READ && args.rotary.half > 0;

	fa_append_find(args, args.items, args.pages.table, shared, first, count);
	fa_quantised_find(args, places, first, count);
	__syncthreads(); /* places and positions are written */
	if (turns) {
		fa_append_turn(args, shared, first, count);
		__syncthreads(); /* turns are written */
	}

	for (int which = 0; which < 2; which++) {
		const struct fa_cuda_tensor &tensor = which ? args.v : args.k;
		const int32_t dim = which ? args.head_dim_v : args.head_dim;
		const uint32_t row_bytes = which ? args.pages.v_row : args.pages.k_row;
		const uint32_t scales_at = which ? quantised.v_scales_at : quantised.k_scales_at;

		if (!tensor.data)
			continue;
		for (int32_t i = threadIdx.x / 32; i < count * args.kv_heads;
		     i += FA_CUDA_TOKENS_THREADS / 32) {
			const int32_t at = i % count, head = i / count;
			const struct fa_token_place &place = shared.places[at];
			char *const dense = (char *)tensor.data +
			                    (int64_t)(first + at) * tensor.stride_token +
			                    head * tensor.stride_head;
			char *const slot = which ? args.pages.v + place.v : args.pages.k + place.k;
			char *const page = slot + (int64_t)head * head_tokens * row_bytes;
			float scale = 1;
			float *own = NULL;

			if (place.k < 0)
				continue;
			if (!quantised.token_scales) {
				scale = which ? quantised.v_scales[head] : quantised.k_scales[head];
			} else {
				const uint32_t token = places.tokens[at];

				own = (float *)(slot - (int64_t)token * row_bytes + scales_at) +
				      (int64_t)head * head_tokens + token;
			}
			if (READ)
				fa_dequantise_row(args.dtype, quantised.store, page, dim,
				                  own ? *own : scale, dense);
			else
				fa_quantise_row(args, quantised.store, dense,
				                turns && !which ? shared.turns[at] : NULL, dim,
				                scale, own, page);
		}
	}

	const int32_t q_rows = READ || !args.q.data ? 0 : count * args.heads;

	for (int32_t i = threadIdx.x / 32; i < q_rows; i += FA_CUDA_TOKENS_THREADS / 32) {
		const int32_t at = i % count, head = i / count;
		const char *const from = (const char *)args.q.data +
		                         (int64_t)(first + at) * args.q.stride_token +
		                         head * args.q.stride_head;
		char *const to = (char *)args.q_out.data +
		                 (int64_t)(first + at) * args.q_out.stride_token +
		                 head * args.q_out.stride_head;
		float values[FA_QUANTISE_EACH];

		fa_append_values(args, from, args.head_dim, turns ? shared.turns[at] : NULL,
		                 values);
		__syncwarp(); /* all have read: the target may be the source */
#pragma unroll
		for (int n = 0; n < FA_QUANTISE_EACH; n++)
			if (n * 32 + lane < args.head_dim)
				fa_element_set(args.dtype, to, n * 32 + lane, values[n]);
	}
}
