/*
 * ALiBi by one more step of Q K^T, for head dim 64. If all keys of a tile are on one side of a
 * group's rows, the bias is +-slope * (key - row), counted from the tile's and the group's first,
 * plus a constant per tile.
 *
 * Operand B, the same for all tiles, has 16 columns of key numbers and ones, and 16 with the signs
 * reversed. Operand A, 16 columns per group, has slope and -slope * row. Each number is a sum of
 * three elements, as exact as fp32: A's second is multiplied by 2^10, the third by 2^20, and B's by
 * the inverse, so that tiny slopes are not subnormal. All threads write B before the block's first
 * barrier; a group writes A when a block of rows begins.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/logits.h"

#include <math.h>
#include <stdint.h>

/* A head's @dot_slope, in units of dot products, can be added so: fp16 must hold 64 times as
 * much. */
__device__ __forceinline__ bool fa_sm90_alibi_fits(const struct fa_cuda_attention &args,
                                                   float dot_slope)
{
	return args.alibi_slopes && fa_sm90_is_linear(args) && fabsf(dot_slope) < 512;
}

template <class T> __device__ __forceinline__ void fa_sm90_alibi_split(float (&ret)[3], float x)
{
#pragma unroll
	for (int i = 0; i < 3; i++) {
		ret[i] = fa_widen<T>((uint16_t)fa_pack<T>(x, 0));
		x = (x - ret[i]) * 1024;
	}
}

__device__ __forceinline__ uint32_t fa_sm90_alibi_address(uint32_t tile, int32_t row, int32_t eight)
{
	return tile + row * 128 + (eight ^ row % 8) * 16;
}

template <class C> __device__ __forceinline__ void fa_sm90_alibi_write_keys(uint32_t shared)
{
	using T = typename C::T;

#pragma unroll 1
	for (int32_t i = threadIdx.x; i < C::KEYS * 4; i += C::THREADS) {
		const int32_t key = i / 4, eight = i % 4;
		/* The last 8 of 16 columns are zero. */
		const float one = eight == 0 ? 1 : eight == 2 ? -1 : 0, place = one * (float)key;

		fa_st_shared_v4(fa_sm90_alibi_address(shared + C::ALIBI_K_AT, key, eight),
		                make_uint4(fa_pack<T>(place, place * 0x1p-10f),
		                           fa_pack<T>(place * 0x1p-20f, one),
		                           fa_pack<T>(one * 0x1p-10f, one * 0x1p-20f), 0));
	}
	fa_proxy_fence_shared();
}

/* The barriers keep this write of A apart from the group's products before and after. */
template <class C>
__device__ __forceinline__ void fa_sm90_alibi_write_rows(uint32_t shared, uint32_t group,
                                                         float dot_slope)
{
	using T = typename C::T;
	const int32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
	const int32_t half = lane / 16;
	float slope[3], start[3];

	static_assert(C::GROUPS <= 4, "a group has 16 of the 64 columns");
	fa_sm90_alibi_split<T>(slope, half ? 0 : dot_slope);
	fa_sm90_alibi_split<T>(start, half ? 0 : -dot_slope * (float)row);
	fa_barrier_sync(C::group_barrier(group), 128);
	fa_st_shared_v4(
		fa_sm90_alibi_address(shared + C::ALIBI_Q_AT, row, (int32_t)group * 2 + half),
		make_uint4(fa_pack<T>(slope[0], slope[1]), fa_pack<T>(slope[2], start[0]),
	                   fa_pack<T>(start[1], start[2]), 0));
	fa_proxy_fence_shared();
	fa_barrier_sync(C::group_barrier(group), 128);
}
