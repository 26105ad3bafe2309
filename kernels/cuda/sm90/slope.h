/*
 * ALiBi by one more step of the product of Q and K, where that is cheaper than an FMA for each
 * pair of row and key: at head dim 64, where tensor cores wait for the rest.
 *
 * Where all keys of a tile are on one side of a group's rows, what is added to a dot product is
 * the slope times (the key's place in the tile - the row's place in the group), or the opposite of
 * it, and something that is the tile's alone. The step's B has the places of keys and ones, the
 * same for all tiles: its first 16 columns, and in the next 16 what is opposite. Its A, of which
 * each group has 16 columns, has a slope and what that is times the row's place, each as a sum of
 * three elements, which is as exact as fp32 is. The second of them is multiplied by 2^10, the
 * third by 2^20, and the places by as little, so that slopes next to nothing are not subnormal in
 * fp16. Both lie as Q and K do.
 *
 * Who writes: B all threads before their first barrier; A a group, when a block of rows begins.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/rich.h"

#include <math.h>
#include <stdint.h>

/* Whether a head's @tilt, its slope in units of dot products, is added that way: fp16 has to have
 * 64 times as much. */
__device__ __forceinline__ bool fa_sm90_slope_fits(const struct fa_cuda_attention &args, float tilt)
{
	return args.alibi_slopes && fa_sm90_linear(args) && fabsf(tilt) < 512;
}

/* @x as the sum of three elements, the second times 2^-10, the third times 2^-20. */
template <class T> __device__ __forceinline__ void fa_sm90_slope_split(float (&ret)[3], float x)
{
#pragma unroll
	for (int i = 0; i < 3; i++) {
		ret[i] = fa_widen<T>((uint16_t)fa_pack<T>(x, 0));
		x = (x - ret[i]) * 1024;
	}
}

/* Where 8 elements of a row of 64 stand, swizzled. */
__device__ __forceinline__ uint32_t fa_sm90_slope_at(uint32_t tile, int32_t row, int32_t eight)
{
	return tile + row * 128 + (eight ^ row % 8) * 16;
}

/* Writes B. */
template <class C> __device__ __forceinline__ void fa_sm90_slope_places(uint32_t shared)
{
	using T = typename C::T;

#pragma unroll 1
	for (int32_t i = threadIdx.x; i < C::KEYS * 4; i += C::THREADS) {
		const int32_t key = i / 4, eight = i % 4;
		/* The last 8 of 16 columns are nothing. */
		const float one = eight == 0 ? 1 : eight == 2 ? -1 : 0, place = one * (float)key;

		fa_st_shared_v4(fa_sm90_slope_at(shared + C::PLACES_AT, key, eight),
		                make_uint4(fa_pack<T>(place, place * 0x1p-10f),
		                           fa_pack<T>(place * 0x1p-20f, one),
		                           fa_pack<T>(one * 0x1p-10f, one * 0x1p-20f), 0));
	}
	fa_proxy_fence_shared();
}

/* Writes the @group's part of A, when its products before have ended. */
template <class C>
__device__ __forceinline__ void fa_sm90_slope_rows(uint32_t shared, uint32_t group, float tilt)
{
	using T = typename C::T;
	const int32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
	const int32_t half = lane / 16;
	float slope[3], start[3];

	static_assert(C::GROUPS <= 4, "each has 16 of 64 columns");
	fa_sm90_slope_split<T>(slope, half ? 0 : tilt);
	fa_sm90_slope_split<T>(start, half ? 0 : -tilt * (float)row);
	fa_barrier_sync(C::group_barrier(group), 128);
	fa_st_shared_v4(fa_sm90_slope_at(shared + C::SLOPES_AT, row, (int32_t)group * 2 + half),
	                make_uint4(fa_pack<T>(slope[0], slope[1]), fa_pack<T>(slope[2], start[0]),
	                           fa_pack<T>(start[1], start[2]), 0));
	fa_proxy_fence_shared();
	fa_barrier_sync(C::group_barrier(group), 128);
}
