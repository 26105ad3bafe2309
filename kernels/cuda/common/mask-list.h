/*
 * Reads a client's lists of key blocks (mask-args.h) into bits in shared memory. What the lists hold may
 * be anything, and may change at any time.
 */
#pragma once

#include "kernels/cuda/common/mask-args.h"
#include "kernels/cuda/common/work.h"

#include <stdint.h>

/* Sets the bits of a list's blocks, by one warp. A column counts if it is a key block, and above all
 * key blocks before it. @list: FA_CUDA_MASK_WORDS zeros. */
__device__ __forceinline__ void fa_masked_read_list(const struct fa_cuda_mask &mask,
                                                    const struct fa_work &work, int32_t row_block,
                                                    uint32_t *list)
{
	const int32_t lane = threadIdx.x % 32;
	/* A client may write them: each entry is read once. */
	const volatile int32_t *offsets = mask.offsets + work.sequence * mask.offsets_batch +
	                                  work.head * mask.offsets_head + row_block;
	const volatile int32_t *columns = mask.columns + work.sequence * mask.columns_batch +
	                                  work.head * mask.columns_head;
	const int32_t n = (work.n_k + mask.block_keys - 1) / mask.block_keys;
	/* Lane 0's: the memory may change between two reads. */
	const int32_t begin = __shfl_sync(~0u, min(max(offsets[0], 0), mask.n_columns), 0);
	const int32_t end = __shfl_sync(~0u,
	                                min(min(max(offsets[1], 0), mask.n_columns) - begin, n), 0);
	int32_t highest = -1;

#pragma unroll 1
	for (int32_t i = 0; i < end; i += 32) {
		const int32_t column = i + lane < end ? columns[begin + i + lane] : -1;
		const int32_t block = column < n ? column : -1;
		int32_t before = highest, all = max(block, highest);

		/* all: the highest of this lane and those before it. */
#pragma unroll
		for (int step = 1; step < 32; step *= 2) {
			const int32_t other = __shfl_sync(~0u, all, (lane - step) & 31);

			if (lane >= step)
				all = max(all, other);
		}
		before = __shfl_sync(~0u, all, (lane - 1) & 31);
		if (lane == 0)
			before = highest;
		if (block > before)
			atomicOr(&list[block / 32], 1u << block % 32);
		highest = __shfl_sync(~0u, all, 31);
	}
}
