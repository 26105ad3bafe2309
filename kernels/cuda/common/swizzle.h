/*
 * Swizzled tiles in shared memory: rows of D 16-bit elements, in chunks of 16 bytes. Chunk c of row
 * r lies at c ^ key(r): the eight rows of an ldmatrix cause no bank conflicts. Tiles are 1024-byte
 * aligned.
 */
#pragma once

#include <stdint.h>

template <int D> struct fa_swizzle {
	static_assert(D % 32 == 0, "rows are whole groups of four chunks");

	static constexpr int row_bytes = D * 2;
	/* Chunks that are permuted among themselves. */
	static constexpr int period = D % 64 == 0 ? 8 : 4;
	static constexpr int lanes = D % 128 == 0 ? 16 : period;

	static __device__ __forceinline__ uint32_t key(uint32_t row)
	{
		/* With an odd number of 64-byte groups, the row's bit 0 already moves it by half
		 * the banks. */
		return period == 8 ? row & 7 : (row >> 1) & 3;
	}

	static __device__ __forceinline__ uint32_t offset(uint32_t row, uint32_t chunk)
	{
		return row * row_bytes + ((chunk ^ key(row)) << 4);
	}

	/* From offset(row, c) with c < 2 to offset(row, c + chunk), @chunk even: one XOR by a
	 * constant. */
	static __device__ __forceinline__ uint32_t advance(uint32_t base, int chunk)
	{
		return (base ^ (uint32_t)((chunk % period) << 4)) +
		       (uint32_t)(chunk / period * period * 16);
	}
};
