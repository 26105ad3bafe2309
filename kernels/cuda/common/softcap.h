/*
 * Soft caps: from a dot product to cap_out * tanh(cap_in * dot).
 *
 * tanh(x) = 1 - 2 / (1 + e^2x) takes two steps of the special unit, which has time for two in all
 * for a pair of row and key at head dim 128, and the exponential is one; tanh.approx takes one, and
 * is good to 2^-11 only. But caps are there for the few logits that get out of hand. Dots below
 * cap_limit, 15/16 of the cap, have a polynomial, and a warp that has no others does nothing
 * else. Which of the two a dot gets is its own matter alone, so that no bit of a row depends on
 * what is computed beside it.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/math.h"

#include <math.h>
#include <stdint.h>

struct fa_softcap {
	float in, out, limit, powers[FA_CUDA_CAP_POWERS];

	__device__ __forceinline__ fa_softcap(const struct fa_cuda_attention &args)
	    : in(args.cap_in * 2.88539008f), out(args.cap_out), limit(args.cap_limit)
	{
#pragma unroll
		for (int i = 0; i < FA_CUDA_CAP_POWERS; i++)
			powers[i] = args.cap_powers[i];
	}

	/* To an absolute cap_out * 2^-22. */
	__device__ __forceinline__ float exponential(float dot) const
	{
		return fmaf(-2 * out, fa_rcp(1 + fa_ex2(in * dot)), out);
	}

	/* To a relative 2^-17, where |dot| < limit. */
	__device__ __forceinline__ float polynomial(float dot) const
	{
		const float square = __fmul_rn(dot, dot);
		float y = powers[FA_CUDA_CAP_POWERS - 1];

#pragma unroll
		for (int i = FA_CUDA_CAP_POWERS - 2; i >= 0; i--)
			y = fmaf(y, square, powers[i]);
		return __fmul_rn(dot, y);
	}

	__device__ __forceinline__ float operator()(float dot) const
	{
		return fa_select(fabsf(dot) < limit, polynomial(dot), exponential(dot));
	}
};

/* Of all of @dots, of all of a warp's threads. A few that are large cost what they and their
 * neighbours take. */
template <int COUNT>
__device__ __forceinline__ void fa_softcap_warp(float (&dots)[COUNT], const struct fa_softcap &cap)
{
	constexpr int few = 4;
	float most[few] = { 0, 0, 0, 0 };

	static_assert(COUNT % few == 0, "as many each");
#pragma unroll
	for (int i = 0; i < COUNT; i++)
		most[i % few] = fmaxf(most[i % few], fabsf(dots[i]));
	if (!__any_sync(~0u,
	                !(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])) < cap.limit))) {
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			dots[i] = cap.polynomial(dots[i]);
		return;
	}
#pragma unroll
	for (int i = 0; i < COUNT; i += few) {
		float large = 0;

#pragma unroll
		for (int j = 0; j < few; j++)
			large = fmaxf(large, fabsf(dots[i + j]));
		if (__any_sync(~0u, !(large < cap.limit))) {
#pragma unroll
			for (int j = 0; j < few; j++)
				dots[i + j] = cap(dots[i + j]);
		} else {
#pragma unroll
			for (int j = 0; j < few; j++)
				dots[i + j] = cap.polynomial(dots[i + j]);
		}
	}
}
