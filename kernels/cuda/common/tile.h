/*
 * Copies tiles of 16-bit elements between global and swizzled shared memory. Rows and columns past
 * the end are zero in shared memory and never touched in global memory.
 */
#pragma once

#include "kernels/cuda/common/swizzle.h"
#include "kernels/cuda/ptx/cp_async.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"

#include <stdint.h>

template <bool NEAR> struct fa_stride {
	using type = int64_t;
};

template <> struct fa_stride<true> {
	using type = int32_t;
};

/* Loads tiles of ROWS rows of D elements. A thread has the same chunks of every pass-th row. NEAR:
 * 32-bit strides, which save registers. */
template <int ROWS, int D, int THREADS, bool NEAR> struct fa_loader {
	static constexpr int lanes = fa_swizzle<D>::lanes;
	static constexpr int pass = THREADS / lanes;
	static constexpr int columns = D / 8 / lanes;
	static_assert(D / 8 % lanes == 0 && ROWS % pass == 0 && pass % 8 == 0, "whole passes");

	const char *source; /* the thread's first chunk in the next tile */
	typename fa_stride<NEAR>::type stride;
	uint32_t shared;         /* the same in shared memory, relative to the tile */
	uint32_t bytes[columns]; /* of each chunk to load: 16, or 0 past the width */

	/* @base: row 0; @first: the next tile's; @width: a multiple of 8 elements. */
	__device__ __forceinline__ fa_loader(const char *base, int64_t stride_token, int32_t first,
	                                     int32_t width)
	{
		const int32_t row = threadIdx.x / lanes, chunk = threadIdx.x % lanes;

		source = base + (first + row) * stride_token + chunk * 16;
		stride = (typename fa_stride<NEAR>::type)stride_token;
		shared = fa_swizzle<D>::offset(row, chunk);
#pragma unroll
		for (int c = 0; c < columns; c++)
			bytes[c] = (chunk + c * lanes) * 8 < width ? 16 : 0;
	}

	__device__ __forceinline__ void retreat(void)
	{
		source -= ROWS * stride;
	}

	__device__ __forceinline__ void load(uint32_t tile) const
	{
		uint32_t at = 0;

#pragma unroll
		for (int i = 0; i < ROWS / pass; i++) {
#pragma unroll
			for (int c = 0; c < columns; c++)
				fa_cp_async_16_zfill(tile + shared + i * pass * D * 2 +
				                             c * lanes * 16,
				                     source + at + c * lanes * 16, bytes[c]);
			at += pass * (uint32_t)stride;
		}
	}

	/* Loads the first @rows rows of a tile; the others become zero. */
	__device__ __forceinline__ void load_part(uint32_t tile, int32_t rows) const
	{
		const int32_t left = rows - (int32_t)(threadIdx.x / lanes);
		uint32_t at = 0;

#pragma unroll
		for (int i = 0; i < ROWS / pass; i++) {
#pragma unroll
			for (int c = 0; c < columns; c++)
				fa_cp_async_16_zfill(tile + shared + i * pass * D * 2 +
				                             c * lanes * 16,
				                     source + at + c * lanes * 16,
				                     i * pass < left ? bytes[c] : 0);
			at += pass * (uint32_t)stride;
		}
	}

	/* Loads rows of any alignment, by elements through registers. */
	__device__ __forceinline__ void load_elements(uint32_t tile, int32_t rows) const
	{
		const int32_t left = rows - (int32_t)(threadIdx.x / lanes);
		const char *at = source;

#pragma unroll 1
		for (int i = 0; i < ROWS / pass; i++) {
#pragma unroll
			for (int c = 0; c < columns; c++) {
				const uint16_t *element = (const uint16_t *)(at + c * lanes * 16);
				uint4 value = make_uint4(0, 0, 0, 0);

				if (i * pass < left && bytes[c]) {
					value.x = element[0] | (uint32_t)element[1] << 16;
					value.y = element[2] | (uint32_t)element[3] << 16;
					value.z = element[4] | (uint32_t)element[5] << 16;
					value.w = element[6] | (uint32_t)element[7] << 16;
				}
				fa_st_shared_v4(tile + shared + i * pass * D * 2 + c * lanes * 16,
				                value);
			}
			at += pass * stride;
		}
	}
};

/* Stores ROWS rows of D elements from a warp's shared memory, from row @first of the tensor's @end
 * rows, @width elements wide. JUDGE: true if this thread stored an infinity or NaN. */
template <int ROWS, int D, bool ELEMENTS, bool JUDGE, class T>
__device__ __forceinline__ bool fa_store_rows(uint32_t lane, uint32_t tile, char *base,
                                              int64_t stride, int32_t first, int32_t end,
                                              int32_t width, bool aligned)
{
	constexpr int lanes = fa_swizzle<D>::lanes;
	const uint32_t chunk = lane % lanes;
	uint32_t zeros = 0; /* sum of 0 * stored values */

#pragma unroll
	for (int i = 0; i < ROWS; i += 32 / lanes) {
		const int32_t row = i + lane / lanes;
		char *target = base + (int64_t)(first + row) * stride + chunk * 16;

#pragma unroll
		for (int c = 0; c < D / 8 / lanes; c++) {
			const uint4 value = fa_ld_shared_v4(
				tile + fa_swizzle<D>::offset(row, chunk + c * lanes));

			if (first + row >= end || (int32_t)(chunk + c * lanes) * 8 >= width)
				continue;
			if (JUDGE) {
				zeros = fa_fma_packed<T>(value.x, 0, zeros);
				zeros = fa_fma_packed<T>(value.y, 0, zeros);
				zeros = fa_fma_packed<T>(value.z, 0, zeros);
				zeros = fa_fma_packed<T>(value.w, 0, zeros);
			}
			if (!ELEMENTS || aligned) {
				*(uint4 *)(target + c * lanes * 16) = value;
				continue;
			}
			const uint32_t words[4] = { value.x, value.y, value.z, value.w };
			uint16_t *element = (uint16_t *)(target + c * lanes * 16);
#pragma unroll
			for (int e = 0; e < 8; e++)
				element[e] = (uint16_t)(words[e / 2] >> e % 2 * 16);
		}
	}
	return zeros != 0;
}
