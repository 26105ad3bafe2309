/*
 * Logit modifiers of SCORE_MOD kernels, chosen at run time: soft cap, ALiBi, sinks, a scale of any
 * sign. Like fa_logits_rich of common/logits.h, in wgmma's layout. Logits are in units of ln 2.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/softcap.h"
#include "kernels/cuda/ptx/math.h"

#include <stdint.h>

__device__ __forceinline__ float fa_sm90_alibi_slope(const struct fa_cuda_attention &args,
                                                     int32_t head)
{
	return args.alibi_slopes ? args.alibi_slopes[head] * 1.44269504f : 0;
}

/* -inf: none. */
template <class C>
__device__ __forceinline__ float fa_sm90_sink(const struct fa_cuda_attention &args, int32_t head)
{
	return C::SINKS && args.sinks ? args.sinks[head] * 1.44269504f : -INFINITY;
}

/* ALiBi apart, logits are dot products times a positive factor. */
__device__ __forceinline__ bool fa_sm90_is_linear(const struct fa_cuda_attention &args)
{
	return args.cap_out == 0 && args.scale_log2 > 0;
}

/* With a soft cap, adds @base of the rows. */
template <class C, int COUNT>
__device__ __forceinline__ void fa_sm90_logits(float (&dots)[COUNT], const float (&base)[2],
                                               const struct fa_cuda_attention &args)
{
	if (C::SOFTCAP || args.cap_out != 0) {
		fa_softcap_warp<C::CAP_CHUNK, C::CAP_CHAINS>(dots, base, fa_softcap(args),
		                                             [](int, int) {});
	} else if (!(args.scale_log2 > 0)) {
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] *= args.scale_log2;
	}
}

/* Adds ALiBi's bias. If all keys of the tile are on one side of the rows, @shift gets the part per
 * row, which the exponent adds. @dot_slope: in units of @dots. @position: of dots[0]'s key relative
 * to its row. @side: 1 if no row sees later keys, -1 if none sees earlier ones, else 0. */
template <int COUNT>
__device__ __forceinline__ void fa_sm90_alibi_add(float (&dots)[COUNT], float dot_slope,
                                                  float factor, int32_t position, int32_t side,
                                                  float (&shift)[2])
{
	const float distance = (float)position, key_slope = side < 0 ? -dot_slope : dot_slope;

	if (side) {
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] = fmaf(key_slope, (float)(i / 4 * 8 + i % 2), dots[i]);
#pragma unroll
		for (int r = 0; r < 2; r++)
			shift[r] = key_slope * factor * (distance - (float)(r * 8));
	} else {
		shift[0] = shift[1] = 0;
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] = fmaf(-dot_slope,
			               fabsf(distance + (float)(i / 4 * 8 + i % 2 - i / 2 % 2 * 8)),
			               dots[i]);
	}
}

__device__ __forceinline__ float fa_sm90_logit(float dot, const struct fa_cuda_attention &args,
                                               float slope, int32_t position)
{
	const float logit = args.cap_out != 0 ? fa_softcap(args)(dot) : dot * args.scale_log2;

	return args.alibi_slopes ? logit - slope * fabsf((float)position) : logit;
}
