/*
 * Online softmax of a consumer group's rows: masks, maxima, exponentials.
 *
 * A row's maximum rises, and O and the sum are rescaled, only when a logit exceeds it by more than
 * 8 (in units of ln 2): p is at most 2^(MAX_EXPONENT + 8), which fp16, bf16 and the fp32 sums
 * hold. FIXED_MAX (bf16): the maximum of the first tile in which the row sees a key; overflow.h
 * handles logits far above it. ALiBi: the maximum of the dot products plus the nearest key's bias.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/softcap.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/config.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* A thread holds two of its warp's 16 rows, g and g + 8. */
struct fa_sm90_sums {
	/* Added in the exponent: minus the row's maximum. At first FLT_MAX: masked logits (-inf)
	 * give 0. */
	float offset[2];
	float sum[2]; /* over this thread's keys */

	__device__ __forceinline__ void reset(void)
	{
		offset[0] = offset[1] = FLT_MAX;
		sum[0] = sum[1] = 0;
	}

	__device__ __forceinline__ bool unset(int r) const
	{
		return offset[r] == FLT_MAX;
	}
};

/* A thread's part of O, in wgmma's accumulator layout. */
template <class C> using fa_sm90_out_rows = float[C::DIM_V / 2];

template <class C> using fa_sm90_dots = float[C::KEYS / 2];

/* P as wgmma's A operand, 16 keys each. */
template <class C> using fa_sm90_p = uint32_t[C::KEYS / 16][4];

/* Counts a thread's elements of a row that precede @end, relative to the first. A thread has 2
 * adjacent keys of every 8. */
__device__ __forceinline__ int32_t fa_sm90_elements_before(int32_t end, int32_t count)
{
	return end <= 0 ? 0 : min((end >> 3) * 2 + min(end & 7, 2), count);
}

__device__ __forceinline__ uint32_t fa_sm90_low_bits(int32_t count)
{
	return count < 32 ? (1u << count) - 1 : ~0u;
}

/* Masks one row, which sees keys [@first, @last] relative to its first element. */
template <class C>
__device__ __forceinline__ void fa_sm90_mask_row(fa_sm90_dots<C> &dots, int r, int32_t first,
                                                 int32_t last)
{
	constexpr int32_t count = C::KEYS / 4;
	const uint32_t seen = fa_sm90_low_bits(fa_sm90_elements_before(last + 1, count)) &
	                      ~fa_sm90_low_bits(fa_sm90_elements_before(first, count));

	static_assert(count <= 32, "a row's mask fits a word");
#pragma unroll
	for (int i = 0; i < count; i++)
		if (!(seen >> i & 1))
			dots[i / 2 * 4 + r * 2 + i % 2] = -INFINITY;
}

/* Sets logits that a row does not see to -inf. All are relative to the row or, without BAND,
 * absolute: @key: that of dots[0], @begin: the first key that is not hidden (PAGED), @end: the
 * sequence's end. */
template <class C>
__device__ __forceinline__ void fa_sm90_mask(fa_sm90_dots<C> &dots,
                                             const struct fa_cuda_attention &args, int32_t key,
                                             int32_t begin, int32_t end)
{
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int32_t first = max(r * 8 - args.window_left, C::PAGED ? begin : INT32_MIN) -
		                      key;
		const int32_t last = C::BAND ? min(end - 1, r * 8 + args.window_right) - key
		                             : end - 1 - key;

		if constexpr (C::MASK_BITS) {
			fa_sm90_mask_row<C>(dots, r, first, last);
		} else {
#pragma unroll
			for (int j = 0; j < C::KEYS / 8; j++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					if (j * 8 + e > last || (C::BAND && j * 8 + e < first))
						dots[j * 4 + r * 2 + e] = -INFINITY;
		}
	}
}

/* Raises a row's maximum to this tile's if it is unset or lags too far, and rescales the sum. True:
 * a row of the warp changed, and the caller multiplies O by @scale. Rows do not influence each
 * other's bits. @shift: added to a thread's logits of a row (SCORE_MOD). @key_slope: bias per key,
 * not part of the maximum. */
template <class C>
__device__ __forceinline__ bool
fa_sm90_update_max(struct fa_sm90_sums &sums, const fa_sm90_dots<C> &dots, float factor,
                   const float (&shift)[2], float key_slope, float (&scale)[2])
{
	float max[2];
	bool raise = false;

	const auto element = [&](int i) {
		return C::ALIBI_MMA && C::FIXED_MAX
		               ? fmaf(-key_slope, (float)(i / 4 * 8 + i % 2), dots[i])
		               : dots[i];
	};

	const auto behind = [&](int r, float logit) {
		return fmaf(logit, C::SCORE_MOD ? 1 : factor, sums.offset[r]) >
		               C::MAX_EXPONENT + 8 &&
		       (!C::FIXED_MAX || sums.unset(r));
	};

#pragma unroll
	for (int r = 0; r < 2; r++) {
		max[r] = fmaxf(element(r * 2), element(r * 2 + 1));
#pragma unroll
		for (int j = 1; j < C::KEYS / 8; j++)
			max[r] = fmaxf(max[r],
			               fmaxf(element(j * 4 + r * 2), element(j * 4 + r * 2 + 1)));
		/* Threads of a row have different shifts. */
		if (C::SCORE_MOD)
			max[r] = fmaf(max[r], factor, shift[r]);
		raise |= behind(r, max[r]);
	}
	if (!__any_sync(~0u, raise))
		return false;

#pragma unroll
	for (int r = 0; r < 2; r++) {
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 1));
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 2));

		const float least = (float)C::MAX_EXPONENT -
		                    (C::SCORE_MOD ? max[r] : max[r] * factor);
		const float offset = behind(r, max[r]) ? least : sums.offset[r];
		const float shrink = fa_ex2(offset - sums.offset[r]);

		sums.offset[r] = offset;
		sums.sum[r] *= shrink;
		scale[r] *= shrink;
	}
	return true;
}

template <class C>
__device__ __forceinline__ void fa_sm90_rescale(fa_sm90_out_rows<C> &out, const float (&scale)[2])
{
#pragma unroll
	for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			out[j * 4 + e] *= scale[e / 2];
}

template <class C>
__device__ __forceinline__ void fa_sm90_add_rows(fa_sm90_dots<C> &dots, const float (&add)[2])
{
#pragma unroll
	for (int i = 0; i < C::KEYS / 2; i++)
		dots[i] += add[i / 2 % 2];
}

/* For steps [FIRST, END) of 16 keys: dots = exp(dots * factor + offset + shift), or exp(dots) with
 * CAP_SUBTRACTS_MAX; adds them to the sums. */
template <class C, int FIRST, int END>
__device__ __forceinline__ void fa_sm90_exponentials(struct fa_sm90_sums &sums,
                                                     fa_sm90_dots<C> &dots, float factor,
                                                     const float (&shift)[2])
{
#pragma unroll
	for (int i = FIRST * 8; i < END * 8; i++) {
		const int r = i / 2 % 2;

		dots[i] = fa_ex2(
			C::CAP_SUBTRACTS_MAX
				? dots[i]
				: fmaf(dots[i], factor,
		                       C::SCORE_MOD ? sums.offset[r] + shift[r] : sums.offset[r]));
		sums.sum[r] += dots[i];
	}
	/* The compiler must not move this behind waits. */
	fa_wgmma_hold(dots);
	fa_wgmma_hold(sums.sum);
}

/* CAP_SUBTRACTS_MAX: soft cap of an unmasked tile whose rows have a maximum, interleaved with the
 * first half of the exponentials. Results are as of one after the other, to the bit. */
template <class C>
__device__ __forceinline__ void fa_sm90_softcap_exponentials(struct fa_sm90_sums &sums,
                                                             fa_sm90_dots<C> &dots,
                                                             const struct fa_cuda_attention &args)
{
	static_assert(!C::CAP_SUBTRACTS_MAX || C::KEYS / 4 % C::CAP_CHUNK == 0,
	              "half a tile is whole chunks");
	fa_softcap_warp<C::CAP_CHUNK, C::CAP_CHAINS>(
		dots, sums.offset, fa_softcap(args), [&](int first, int end) {
			if (end <= C::KEYS / 4)
#pragma unroll
				for (int i = first; i < end; i++) {
					dots[i] = fa_ex2(dots[i]);
					sums.sum[i / 2 % 2] += dots[i];
				}
		});
	fa_wgmma_hold(dots);
	fa_wgmma_hold(sums.sum);
}

template <class C>
__device__ __forceinline__ void fa_sm90_convert_p(fa_sm90_p<C> &ret_p, const fa_sm90_dots<C> &dots)
{
#pragma unroll
	for (int k = 0; k < C::KEYS / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			ret_p[k][i] = fa_pack<typename C::T>(dots[k * 8 + i * 2],
			                                     dots[k * 8 + i * 2 + 1]);
			fa_wgmma_hold(ret_p[k][i]);
		}
}
