/*
 * From dot products to logits: the hook for variants of attention. Logits are in units of ln 2, so
 * that exp() is one instruction. A variant defines
 *   factor()  multiplies apply()'s results in the exponent, > 0
 *   apply()   turns a thread's dot products into logits / factor
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/math.h"

#include <stdint.h>

/* scale * dot, for scale > 0: the multiplication is part of the exponent's FMA. */
struct fa_logits_scaled {
	static constexpr bool any_alignment = false;
	static constexpr bool any_sink = false;

	float scale;

	__device__ __forceinline__ fa_logits_scaled(const struct fa_cuda_attention &args, int32_t)
	    : scale(args.scale_log2)
	{
	}

	__device__ __forceinline__ float factor(void) const
	{
		return scale;
	}

	template <int ATOMS, int TILES>
	__device__ __forceinline__ void apply(float (&)[ATOMS][TILES][4], int32_t) const
	{
	}
};

/* Soft cap, ALiBi, sinks, scales of any sign, rows of any alignment, chosen at run time. */
struct fa_logits_rich {
	static constexpr bool any_alignment = true;
	static constexpr bool any_sink = true;

	float scale, cap_in, cap_out, slope;

	__device__ __forceinline__ fa_logits_rich(const struct fa_cuda_attention &args,
	                                          int32_t head)
	    : scale(args.scale_log2), cap_in(args.cap_in * 2.88539008f), cap_out(args.cap_out),
	      slope(args.alibi_slopes ? args.alibi_slopes[head] * 1.44269504f : 0)
	{
	}

	__device__ __forceinline__ float factor(void) const
	{
		return 1;
	}

	/* @position: of the key of dots[0][0][0], minus its row's. */
	template <int ATOMS, int TILES>
	__device__ __forceinline__ void apply(float (&dots)[ATOMS][TILES][4],
	                                      int32_t position) const
	{
		if (cap_out != 0) {
			/* tanh.approx has an error of 2^-11, this one 2^-22. */
#pragma unroll
			for (int a = 0; a < ATOMS; a++)
#pragma unroll
				for (int j = 0; j < TILES; j++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						dots[a][j][e] =
							cap_out -
							2 * cap_out *
								fa_rcp(1 + fa_ex2(cap_in *
						                                  dots[a][j][e]));
		} else {
#pragma unroll
			for (int a = 0; a < ATOMS; a++)
#pragma unroll
				for (int j = 0; j < TILES; j++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						dots[a][j][e] *= scale;
		}
		if (slope != 0) {
			const float distance = (float)position;

#pragma unroll
			for (int a = 0; a < ATOMS; a++)
#pragma unroll
				for (int j = 0; j < TILES; j++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						dots[a][j][e] -= slope *
						                 fabsf(distance +
						                       (float)(j * 8 + e % 2 -
						                               a * 16 - e / 2 * 8));
		}
	}
};
