/*
 * What the kernels of kind RICH do beside the others: soft cap, ALiBi, a scale of any sign,
 * each chosen at run time, alike for the whole launch; and sinks. As fa_logits_rich of
 * common/logits.h, in wgmma's layout. Logits are in units of ln 2.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/softcap.h"
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

/* Whether logits are dot products times a factor, but for ALiBi. */
__device__ __forceinline__ bool fa_sm90_linear(const struct fa_cuda_attention &args)
{
	return args.cap_out == 0 && args.scale_log2 > 0;
}

/* If they are not, what the exponents take with a factor of 1; if there is a cap, @base of their
 * rows is added. */
template <class C, int COUNT>
__device__ __forceinline__ void fa_sm90_logits(float (&dots)[COUNT], const float (&base)[2],
                                               const struct fa_cuda_attention &args)
{
	if (C::CAP || args.cap_out != 0) {
		fa_softcap_warp<C::CAP_PART, C::CAP_CHAINS>(dots, base, fa_softcap(args),
		                                            [](int, int) {});
	} else if (!(args.scale_log2 > 0)) {
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] *= args.scale_log2;
	}
}

/*
 * ALiBi. Where all keys of a tile are on one side of its rows it is a slope over the tile, the
 * same for all rows, and something for each row, @shift, which is added in the exponent.
 * @tilt: the slope in units of @dots. @position: that of the key of dots[0], less its row's.
 * @side: 1 where no row sees keys after its own, -1 where none sees any before, else 0.
 */
template <int COUNT>
__device__ __forceinline__ void fa_sm90_tilt(float (&dots)[COUNT], float tilt, float factor,
                                             int32_t position, int32_t side, float (&shift)[2])
{
	const float distance = (float)position, along = side < 0 ? -tilt : tilt;

	if (side) {
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] = fmaf(along, (float)(i / 4 * 8 + i % 2), dots[i]);
#pragma unroll
		for (int r = 0; r < 2; r++)
			shift[r] = along * factor * (distance - (float)(r * 8));
	} else {
		shift[0] = shift[1] = 0;
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] = fmaf(-tilt,
			               fabsf(distance + (float)(i / 4 * 8 + i % 2 - i / 2 % 2 * 8)),
			               dots[i]);
	}
}

/* A logit. */
__device__ __forceinline__ float fa_sm90_logit(float dot, const struct fa_cuda_attention &args,
                                               float slope, int32_t position)
{
	const float logit = args.cap_out != 0 ? fa_softcap(args)(dot) : dot * args.scale_log2;

	return args.alibi_slopes ? logit - slope * fabsf((float)position) : logit;
}
