/*
 * 8-bit codes of quantised pages: conversion to fp16, scales, NaN. C is the kernel's config; its
 * place<true>() locates 16 bytes of a row in a strip of V.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/common/warp_pair.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

__device__ __forceinline__ const struct fa_cuda_paged_quantised &
fa_quantised_of(const struct fa_cuda_paged_attention &args)
{
	return ((const struct fa_cuda_paged_attention_quantised &)args).quantised;
}

/* Return the scale of a head of K, or of V, where tokens have none. */
template <class C>
__device__ __forceinline__ float fa_quantised_k_scale(const struct fa_cuda_paged_attention &args,
                                                      uint32_t head)
{
	if constexpr (C::OWN)
		return fa_own_of(args).k_scales ? fa_own_of(args).k_scales[head] : 1;
	else
		return fa_quantised_of(args).k_scales[head];
}

template <class C>
__device__ __forceinline__ float fa_quantised_v_scale(const struct fa_cuda_paged_attention &args,
                                                      uint32_t head)
{
	if constexpr (C::OWN)
		return fa_own_of(args).v_scales ? fa_own_of(args).v_scales[head] : 1;
	else
		return fa_quantised_of(args).v_scales[head];
}

/* ---- codes as fp16 */

/* Unpacks four codes: the first two, and the last two. */
template <int STORE>
__device__ __forceinline__ void fa_quantised_unpack(uint32_t word, uint32_t &first, uint32_t &last)
{
	if constexpr (STORE == FA_STORE_E4M3) {
		fa_e4m3_to_f16_pairs(word, first, last);
	} else {
		/* A code plus 1024 + 128; 1152 is subtracted again. */
		const uint32_t raised = word ^ 0x80808080;

		first = fa_fma_packed<fa_f16>(__byte_perm(raised, 0x64646464, 0x4140), 0x3c003c00,
		                              0xe480e480);
		last = fa_fma_packed<fa_f16>(__byte_perm(raised, 0x64646464, 0x4342), 0x3c003c00,
		                             0xe480e480);
	}
}

/* Unpacks four codes: the even two, and the odd two. */
template <int STORE>
__device__ __forceinline__ void fa_quantised_unpack_even_odd(uint32_t word, uint32_t &even,
                                                             uint32_t &odd)
{
	if constexpr (STORE == FA_STORE_E4M3) {
		fa_quantised_unpack<STORE>(__byte_perm(word, 0, 0x3120), even, odd);
	} else {
		const uint32_t raised = word ^ 0x80808080;

		even = fa_fma_packed<fa_f16>(__byte_perm(raised, 0x64646464, 0x4240), 0x3c003c00,
		                             0xe480e480);
		odd = fa_fma_packed<fa_f16>(__byte_perm(raised, 0x64646464, 0x4341), 0x3c003c00,
		                            0xe480e480);
	}
}

/* ---- Q as fp16 */

__device__ __forceinline__ uint32_t fa_quantised_max_magnitude(uint4 value)
{
	const uint32_t words[4] = { value.x, value.y, value.z, value.w };
	uint32_t most = 0;

#pragma unroll
	for (int w = 0; w < 4; w++)
		most = max(most, max(words[w] & 0x7fff, words[w] >> 16 & 0x7fff));
	return most;
}

/* The power of two that divides a row of bf16; @most: largest magnitude. */
struct fa_quantised_q_scale {
	float factor, inverse;

	__device__ __forceinline__ fa_quantised_q_scale(uint32_t most)
	{
		uint32_t exponent = most >> 7;

		/* 2^10 for rows with an infinity or NaN; tiny rows are not scaled up. */
		exponent = exponent == 255 ? 137 : max(exponent, 11u);
		factor = __uint_as_float(exponent - 10 << 23);
		inverse = __uint_as_float((264 - exponent) << 23);
	}

	__device__ __forceinline__ uint32_t to_f16(uint32_t word) const
	{
		return fa_pack<fa_f16>(__uint_as_float(word << 16) * inverse,
		                       __uint_as_float(word & 0xffff0000) * inverse);
	}
};

/* ---- a strip */

__device__ __forceinline__ uint32_t fa_quantised_nan_bytes(uint32_t word)
{
	return ((word & 0x7f7f7f7f) + 0x01010101) & 0x80808080;
}

/* Clears a strip's NaNs in V, as 0 times NaN would reach every row, and sets them in O of rows that
 * see them. @v: the tile. */
template <class C>
__device__ __forceinline__ void fa_quantised_move_nans(struct fa_warp_rows<C> &rows, uint32_t v,
                                                       const struct fa_paged_visibility &visible)
{
	const uint32_t lane = threadIdx.x % 32, t = lane % 4;
	uint32_t seen[2 * C::ATOMS]; /* bit j: the row sees token j */

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		seen[r] = (uint32_t)visible.sees(r, 0) << (2 * t) |
		          (uint32_t)visible.sees(r, 1) << (2 * t + 1) |
		          (uint32_t)visible.sees(r, 8) << (2 * t + 8) |
		          (uint32_t)visible.sees(r, 9) << (2 * t + 9);
		seen[r] |= __shfl_xor_sync(~0u, seen[r], 1);
		seen[r] |= __shfl_xor_sync(~0u, seen[r], 2);
	}
#pragma unroll
	for (int c = 0; c < C::DIM_V / 16; c++) {
		uint32_t hit[2 * C::ATOMS] = { 0 };

#pragma unroll 1
		for (int j = 0; j < 16; j++) {
			const uint32_t nan = fa_quantised_nan_bytes(fa_ld_shared(
				v + j * C::PITCH_V + C::template place<true>(j, c) * 16 + 4 * t));

#pragma unroll
			for (int r = 0; r < 2 * C::ATOMS; r++)
				hit[r] |= seen[r] >> j & 1 ? nan : 0;
		}
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
			for (int b = 0; b < 4; b++)
				if (hit[r] >> (8 * b + 7) & 1)
					rows.out[r / 2][2 * c + b % 2][r % 2 * 2 + b / 2] = NAN;
	}
	__syncwarp(); /* all have read */
#pragma unroll 1
	for (uint32_t at = lane * 4; at < 16 * C::PITCH_V; at += 128) {
		const uint32_t word = fa_ld_shared(v + at), nan = fa_quantised_nan_bytes(word);

		if (nan)
			fa_st_shared(v + at, word & ~((nan >> 7) * 0xff));
	}
	__syncwarp(); /* all are cleared */
}

/* True in all lanes if no code is NaN. */
template <class C> __device__ __forceinline__ bool fa_quantised_has_no_nan(uint32_t v)
{
	constexpr int32_t bytes = C::STORE == FA_STORE_E4M3 ? 16 * C::PITCH_V : 0;
	uint32_t nan = 0;

#pragma unroll 1
	for (int32_t at = threadIdx.x % 32 * 16; at < bytes; at += 512) {
		const uint4 value = fa_ld_shared_v4(v + at);

		nan |= fa_quantised_nan_bytes(value.x) | fa_quantised_nan_bytes(value.y) |
		       fa_quantised_nan_bytes(value.z) | fa_quantised_nan_bytes(value.w);
	}
	return !__any_sync(~0u, nan);
}

__device__ __forceinline__ void fa_quantised_scales(float (&ret)[4], uint32_t scales)
{
	const uint32_t t = threadIdx.x % 4;

#pragma unroll
	for (int i = 0; i < 4; i++)
		ret[i] = __uint_as_float(fa_ld_shared(scales + (2 * t + i % 2 + i / 2 * 8) * 4));
}

/* V's scales are divided by a unit per row, the unit of O. */
template <class C> struct fa_quantised_v_unit {
	float inverse[2 * C::ATOMS];

	__device__ __forceinline__ void start(float value)
	{
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
			inverse[r] = value;
	}

	/* Raises the unit to the largest scale of a visible token, and rescales O. */
	template <bool HIDES>
	__device__ __forceinline__ void raise(struct fa_warp_rows<C> &rows,
	                                      const float (&scales)[4],
	                                      const struct fa_paged_visibility &visible)
	{
		float most[2 * C::ATOMS];
		bool raises = false;

#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++) {
			most[r] = 0;
#pragma unroll
			for (int i = 0; i < 4; i++) {
				/* An infinity or NaN cannot become the unit. */
				const bool counts = scales[i] <= FLT_MAX / 4 &&
				                    (!HIDES || visible.sees(r, i / 2 * 8 + i % 2));

				most[r] = counts ? fmaxf(most[r], scales[i]) : most[r];
			}
			raises |= most[r] * inverse[r] > 1;
		}
		if (!__any_sync(~0u, raises))
			return;
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++) {
			float factor;

			most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
			most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
			if (!(most[r] * inverse[r] > 1))
				continue;
			/* Twice the largest scale, so that it rises rarely; an infinite one stays.
			 * The reciprocal of a subnormal would be infinite. */
			factor = fa_rcp(inverse[r]);
			inverse[r] = 0.25f * fa_rcp(fmaxf(0.5f * most[r], FLT_MIN));
			factor = fmaxf(factor * inverse[r], FLT_MIN);
#pragma unroll
			for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					rows.out[r / 2][j][r % 2 * 2 + e] *= factor;
		}
	}

	/* Call at a segment's end. */
	__device__ __forceinline__ void settle(struct fa_warp_rows<C> &rows,
	                                       const struct fa_cuda_paged_attention &args,
	                                       uint32_t head) const
	{
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++) {
			float factor = fa_quantised_of(args).token_scales
			                       ? 1 / inverse[r]
			                       : fa_quantised_v_scale<C>(args, head);

			/* P V of codes is below 2^54; large units would make it infinite. */
			if (fabsf(factor) > 0x1p64f) {
				factor *= 0x1p-64f;
				rows.sum[r] *= 0x1p-64f;
				rows.offset[r] -= 64;
			}
#pragma unroll
			for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					rows.out[r / 2][j][r % 2 * 2 + e] *= factor;
		}
	}
};

/* Computes exp(dots + offset) times V's scales, as fragments, and the exponentials' sums. */
template <class C, bool HIDES>
__device__ __forceinline__ void
fa_quantised_probabilities(struct fa_warp_rows<C> &rows, uint32_t (&ret_p)[C::ATOMS][4],
                           const float (&dots)[C::ATOMS][2][4], const float (&scales)[4],
                           const struct fa_quantised_v_unit<C> &unit,
                           const struct fa_paged_visibility &visible)
{
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int r = 2 * a + i % 2, j = i / 2;
			float weights[2];

#pragma unroll
			for (int e = 0; e < 2; e++) {
				const float p = fa_ex2(dots[a][j][i % 2 * 2 + e] + rows.offset[r]);

				rows.sum[r] += p;
				weights[e] = p * (scales[2 * j + e] * unit.inverse[r]);
				if (HIDES && !visible.sees(r, 8 * j + e))
					weights[e] = 0;
			}
			ret_p[a][i] = fa_pack<fa_f16>(weights[0], weights[1]);
		}
}

/* HIDES: some row does not see some key. @scales_v: of the strip's tokens, if any. Returns what
 * rows see. */
template <class C, bool HIDES>
__device__ __forceinline__ struct fa_paged_visibility
fa_quantised_softmax(const struct fa_cuda_paged_attention &args,
                     const struct fa_cuda_paged_item &item, struct fa_warp_rows<C> &rows,
                     struct fa_quantised_v_unit<C> &unit, uint32_t (&ret_p)[C::ATOMS][4],
                     float (&dots)[C::ATOMS][2][4], uint32_t scales_v, uint32_t rows_info,
                     int32_t token)
{
	const struct fa_warp_pair<C> alone(0, 0);
	struct fa_paged_visibility visible = { ~0u };
	float scales[4] = { 1, 1, 1, 1 };

	if (HIDES || args.attention.alibi_slopes)
		visible = fa_paged_mask_scores<C>(dots, args, item, rows_info, token);
	fa_warp_raise_max<C>(rows, dots, 1, alone);
	if (fa_quantised_of(args).token_scales) {
		fa_quantised_scales(scales, scales_v);
		unit.template raise<HIDES>(rows, scales, visible);
	}
	fa_quantised_probabilities<C, HIDES>(rows, ret_p, dots, scales, unit, visible);
	return visible;
}
