/*
 * Costs of packed rows (sm90/packed_source.h), in times in which a thread block computes one key.
 */
#pragma once

#include "kernels/cuda/common/packed-args.h"

#include <stdbool.h>
#include <stdint.h>

/* Time of a thread block besides its tiles. */
#define FA_CUDA_UNIT_KEYS 320
#define FA_CUDA_JOIN_KEYS 48
/* Time to join parts where warps share the work, and more for each 8 parts that one warp adds up
 * (docs/kernels.md). */
#define FA_CUDA_SHARE_KEYS 300
#define FA_CUDA_SHARE_PARTS_KEYS 80
/* With more thread blocks per multiprocessor than this, packing gains nothing. */
#define FA_CUDA_PACKED_WAVES_MAX 6

/* Returns the time to join a block of rows of @parts parts. @shared: sm90/packed_share.h does
 * it. */
static inline double fa_cuda_join_keys(uint32_t parts, bool shared)
{
	const uint32_t run = FA_CUDA_PACKED_RUN;

	if (parts == 1)
		return 0;
	if (shared)
		return FA_CUDA_SHARE_KEYS +
		       FA_CUDA_SHARE_PARTS_KEYS *
		               (parts < FA_CUDA_SHARE_PARTS_SPLIT ? parts : parts / 4.0) / 8;
	return FA_CUDA_JOIN_KEYS *
	       (parts <= run ? parts + 1.0 : run + 2.0 + (double)((parts + run - 1) / run));
}
