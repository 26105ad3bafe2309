/*
 * A warp's softmax: masks, maxima, exponentials, for TILES fragments of 8 keys. The subtracted
 * maximum rises, and O and the sum are rescaled, only when a logit exceeds it by more than
 * FA_WARP_LAG. p of the maximum is 2^fa_warp_exponent(), so that the sum of p is below 1 and P V of
 * finite values is finite.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/warp_pair.h"
#include "kernels/cuda/ptx/math.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <type_traits>

/* In units of ln 2. */
#define FA_WARP_LAG 8
#define FA_WARP_KEYS_MAX_LOG2 29
static_assert(FA_CUDA_SEQLEN_MAX <= 1 << FA_WARP_KEYS_MAX_LOG2, "more keys need smaller p");

/* @T: P's type. fp16 lacks such small numbers; P V of its V is always finite. */
template <class T> __device__ constexpr float fa_warp_exponent(void)
{
	return std::is_same_v<T, struct fa_f16> ? 0 : -(FA_WARP_LAG + FA_WARP_KEYS_MAX_LOG2 + 1);
}

/* Returns x * factor, a row's mean. Rounding makes it infinite only if @x is. */
__device__ __forceinline__ float fa_mean_f32(float x, float factor)
{
	const float mean = x * factor;

	return isinf(mean) && !isinf(x) ? copysignf(FLT_MAX, mean) : mean;
}

/* A thread has rows g and g + 8 of every atom, row = 2 * atom + half. */
template <class C> struct fa_warp_rows {
	/* Added in the exponent: fa_warp_exponent() minus a recent maximum of the logits. At first
	 * FLT_MAX: masked logits (-inf) give 0. */
	float offset[2 * C::ATOMS];
	float sum[2 * C::ATOMS]; /* of this thread's keys */
	float out[C::ATOMS][C::WARP_DIM_V / 8][4];
};

template <class C> __device__ __forceinline__ void fa_warp_clear(struct fa_warp_rows<C> &rows)
{
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		rows.offset[r] = FLT_MAX;
		rows.sum[r] = 0;
	}
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int j = 0; j < C::WARP_DIM_V / 8; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				rows.out[a][j][e] = 0;
}

template <class C> struct fa_warp_visibility {
	int32_t key;   /* the thread's first key, relative to its first row; for BAND */
	int32_t start; /* STARTS: keys from there to the first visible one */
	int32_t rest;  /* keys from there to the sequence's end */
	int32_t left, right;

	/* The row sees the key @offset after @key. */
	__device__ __forceinline__ bool sees(int r, int offset) const
	{
		const int32_t first = C::SOURCE::STARTS ? max(start, r * 8 - left - key)
		                                        : r * 8 - left - key;
		const int32_t last = C::BAND ? min(rest - 1, r * 8 + right - key) : rest - 1;

		return offset <= last && (!C::BAND || offset >= first);
	}
};

template <class C, int TILES>
__device__ __forceinline__ void fa_warp_mask(float (&dots)[C::ATOMS][TILES][4],
                                             const struct fa_warp_visibility<C> &sight)
{
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
		for (int j = 0; j < TILES; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				if (!sight.sees(r, j * 8 + e))
					dots[r / 2][j][r % 2 * 2 + e] = -INFINITY;
}

/* Raises maxima that lag too far behind this tile's. */
template <class C, int TILES>
__device__ __forceinline__ void fa_warp_raise_max(struct fa_warp_rows<C> &rows,
                                                  const float (&dots)[C::ATOMS][TILES][4],
                                                  float factor, const struct fa_warp_pair<C> &pair)
{
	constexpr float exponent = fa_warp_exponent<typename C::T>();
	float max[2 * C::ATOMS];
	bool raise = false;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const int a = r / 2, e = r % 2 * 2;

		max[r] = fmaxf(dots[a][0][e], dots[a][0][e + 1]);
#pragma unroll
		for (int j = 1; j < TILES; j++)
			max[r] = fmaxf(max[r], fmaxf(dots[a][j][e], dots[a][j][e + 1]));
		raise |= fmaf(max[r], factor, rows.offset[r]) > exponent + FA_WARP_LAG;
	}
	raise = C::SPLIT > 1 ? fa_barrier_any(pair.barrier, 64, raise) : __any_sync(~0u, raise);
	if (!raise)
		return;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 1));
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 2));
	}
	if (C::SPLIT > 1) {
		float others[2 * C::ATOMS];

		pair.swap_rows(others, max);
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
			max[r] = fmaxf(max[r], others[r]);
	}
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		/* Row by row, so that a row's bits depend on no other row. */
		const bool behind = fmaf(max[r], factor, rows.offset[r]) > exponent + FA_WARP_LAG;
		const float offset = behind ? exponent - max[r] * factor : rows.offset[r];
		const float scale = fa_ex2(offset - rows.offset[r]);

		rows.offset[r] = offset;
		rows.sum[r] *= scale;
#pragma unroll
		for (int j = 0; j < C::WARP_DIM_V / 8; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				rows.out[r / 2][j][r % 2 * 2 + e] *= scale;
	}
}

/* Computes exp(dots + offset) of 16 keys, as fragments, and adds to the sums. */
template <class C, int TILES>
__device__ __forceinline__ void
fa_warp_probabilities(struct fa_warp_rows<C> &rows, uint32_t (&ret_p)[C::ATOMS][4],
                      const float (&dots)[C::ATOMS][TILES][4], float factor, int step)
{
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float(&pair)[4] = dots[a][2 * step + i / 2];
			const int r = 2 * a + i % 2;
			const float lo = fa_ex2(fmaf(pair[i % 2 * 2], factor, rows.offset[r]));
			const float hi = fa_ex2(fmaf(pair[i % 2 * 2 + 1], factor, rows.offset[r]));

			rows.sum[r] += lo;
			rows.sum[r] += hi;
			ret_p[a][i] = fa_pack<typename C::T>(lo, hi);
		}
}
