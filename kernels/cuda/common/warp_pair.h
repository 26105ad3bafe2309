/*
 * Pairs of warps that share rows (SPLIT 2) exchange through shared memory. With SPLIT 1 a warp is
 * half 0 and exchanges nothing.
 */
#pragma once

#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/memory.h"

#include <stdint.h>

/* In each group of eight chunks of V's columns, half 0 has chunks 0 to 3, half 1 chunks 4 to 7. */
template <class C> struct fa_warp_pair {
	uint32_t barrier;
	uint32_t half;
	uint32_t mine, others; /* shared memory of the two warps: P, then rows */

	__device__ __forceinline__ fa_warp_pair(uint32_t shared, uint32_t warp)
	{
		constexpr uint32_t bytes = C::P_BYTES + C::ROW_BYTES;

		barrier = 1 + warp / 2;
		half = C::SPLIT > 1 ? warp % 2 : 0;
		mine = shared + warp * bytes;
		others = shared + (warp ^ 1) * bytes;
	}

	/* Returns the chunk of O's fragment @j of 8 columns, minus 4 * half. */
	static __device__ __forceinline__ int chunk(int j)
	{
		return C::SPLIT > 1 ? j / 4 * 8 + j % 4 : j;
	}

	/* Exchanges one value per row with the other warp; it is uniform in a quad. */
	__device__ __forceinline__ void swap_rows(float (&ret_others)[2 * C::ATOMS],
	                                          const float (&values)[2 * C::ATOMS]) const
	{
		const uint32_t lane = threadIdx.x % 32;

		if (lane % 4 == 0)
#pragma unroll
			for (int r = 0; r < 2 * C::ATOMS; r++)
				fa_st_shared(mine + C::P_BYTES + (r * 8 + lane / 4) * 4,
				             __float_as_uint(values[r]));
		fa_barrier_sync(barrier, 64);
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
			ret_others[r] = __uint_as_float(
				fa_ld_shared(others + C::P_BYTES + (r * 8 + lane / 4) * 4));
	}
};
