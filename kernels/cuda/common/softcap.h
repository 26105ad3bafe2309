/*
 * Soft caps: cap_out * tanh(cap_in * dot) (docs/kernels.md). Dots below 15/16 of the cap use a
 * polynomial in y = dot^2 - cap_square < 0; larger ones, and their y, are first replaced by values
 * for which it gives the logit. The choice depends on the dot alone: no bit of a row depends on its
 * neighbours.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/math.h"

#include <math.h>
#include <stdint.h>

struct fa_softcap {
	float in, large, square, powers[FA_CUDA_CAP_POWERS];

	__device__ __forceinline__ fa_softcap(const struct fa_cuda_attention &args)
	    : in(args.cap_in * 2.88539008f), large(args.cap_large), square(args.cap_square)
	{
#pragma unroll
		for (int i = 0; i < FA_CUDA_CAP_POWERS; i++)
			powers[i] = args.cap_powers[i];
	}

	/* NaN stays NaN either way. */
	__device__ __forceinline__ float beyond(float dot) const
	{
		return fmaf(dot, dot, -square);
	}

	/* A large dot and its y; the logit is then exact to cap_out * 2^-22, absolute. */
	__device__ __forceinline__ void replace(float &dot, float &y) const
	{
		const float other = fmaf(-2 * large, fa_rcp(1 + fa_ex2(in * dot)), large);

		dot = fa_select(y < 0, dot, other);
		y = fminf(y, 0);
	}

	/* Returns the logit plus @base, to a relative 2^-17 of the logit. */
	__device__ __forceinline__ float add(float dot, float y, float base) const
	{
		float factor = powers[FA_CUDA_CAP_POWERS - 1];

#pragma unroll
		for (int i = FA_CUDA_CAP_POWERS - 2; i >= 0; i--)
			factor = fmaf(factor, y, powers[i]);
		return fmaf(dot, factor, base);
	}

	__device__ __forceinline__ float operator()(float dot) const
	{
		float y = beyond(dot);

		replace(dot, y);
		return add(dot, y, 0);
	}
};

/* Turns a warp's @dots into logits and adds their rows' @base. Checks PART dots at a time, in
 * CHAINS of independent instructions. @behind is called for each finished range [first, end), and
 * overlaps with the next. */
template <int PART, int CHAINS, int COUNT, class BEHIND>
__device__ __forceinline__ void fa_softcap_warp(float (&dots)[COUNT], const float (&base)[2],
                                                struct fa_softcap cap, BEHIND behind)
{
	float y[2][PART];
	bool large;

	static_assert(COUNT % PART == 0, "as many each");
	/* A register for this coefficient saves a move per dot. */
	cap.powers[FA_CUDA_CAP_POWERS - 2] = fa_to_vector_register(
		cap.powers[FA_CUDA_CAP_POWERS - 2]);
	const auto look = [&](int part) {
		int32_t signs[CHAINS];

#pragma unroll
		for (int i = 0; i < CHAINS; i++)
			signs[i] = -1;
#pragma unroll
		for (int i = 0; i < PART; i++) {
			y[part % 2][i] = cap.beyond(dots[part * PART + i]);
			signs[i * CHAINS / PART] &= __float_as_int(y[part % 2][i]);
		}
#pragma unroll
		for (int i = 1; i < CHAINS; i++)
			signs[0] &= signs[i];
		large = __any_sync(~0u, signs[0] >= 0);
	};

	look(0);
#pragma unroll
	for (int part = 0; part < COUNT / PART; part++) {
		if (large)
#pragma unroll
			for (int i = 0; i < PART; i++)
				cap.replace(dots[part * PART + i], y[part % 2][i]);
		if (part + 1 < COUNT / PART)
			look(part + 1);
#pragma unroll
		for (int i = 0; i < PART; i++)
			dots[part * PART + i] = cap.add(dots[part * PART + i], y[part % 2][i],
			                                base[i / 2 % 2]);
		if (part > 0)
			behind(part * PART - PART, part * PART);
	}
}
