/*
 * What the kernels of kind RICH do beside the others: soft cap, ALiBi, a scale of any sign,
 * each chosen at run time, alike for the whole launch; and sinks. As fa_logits_rich of
 * common/logits.h, in wgmma's layout. Logits are in units of ln 2.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/math.h"

#include <stdint.h>

/* A head's slope. */
__device__ __forceinline__ float fa_sm90_slope(const struct fa_cuda_attention &args, int32_t head)
{
	return args.alibi_slopes ? args.alibi_slopes[head] * 1.44269504f : 0;
}

/* A head's sink, -inf if it has none. */
__device__ __forceinline__ float fa_sm90_sink(const struct fa_cuda_attention &args, int32_t head)
{
	return args.sinks ? args.sinks[head] * 1.44269504f : -INFINITY;
}

/* cap * tanh(), with an absolute error of cap * 2^-22: tanh(x) = 1 - 2 / (1 + e^2x). */
__device__ __forceinline__ float fa_sm90_capped(const struct fa_cuda_attention &args, float dot)
{
	return args.cap_out -
	       2 * args.cap_out * fa_rcp(1 + fa_ex2(args.cap_in * 2.88539008f * dot));
}

/* Turns dot products into logits. @position: that of the key of dots[0], less its row's. */
template <int COUNT>
__device__ __forceinline__ void fa_sm90_logits(float (&dots)[COUNT],
                                               const struct fa_cuda_attention &args, float slope,
                                               int32_t position)
{
	if (args.cap_out != 0) {
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] = fa_sm90_capped(args, dots[i]);
	} else {
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] *= args.scale_log2;
	}
	if (args.alibi_slopes) {
		const float distance = (float)position;

#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] -= slope *
			           fabsf(distance + (float)(i / 4 * 8 + i % 2 - i / 2 % 2 * 8));
	}
}

/* The same for one. */
__device__ __forceinline__ float fa_sm90_logit(float dot, const struct fa_cuda_attention &args,
                                               float slope, int32_t position)
{
	const float logit = args.cap_out != 0 ? fa_sm90_capped(args, dot) : dot * args.scale_log2;

	return args.alibi_slopes ? logit - slope * fabsf((float)position) : logit;
}
