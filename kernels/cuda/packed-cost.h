/*
 * What packed rows cost (sm90/packed_source.h), in the time that a thread block needs for so many
 * keys; measured on an H200.
 */
#pragma once

#include "kernels/cuda/common/packed-args.h"

#include <stdbool.h>
#include <stdint.h>

/* What a thread block needs besides its tiles. */
#define FA_CUDA_UNIT_KEYS 320
/* For a part of O that one warp joins. */
#define FA_CUDA_JOIN_KEYS 48
/* To join parts whose warps share the work, and for each 8 parts that one warp adds up; estimated
 * from a trace (docs/kernels.md). */
#define FA_CUDA_SHARE_KEYS 300
#define FA_CUDA_SHARE_PARTS_KEYS 80
/* More than so many thread blocks for each multiprocessor need no packing. */
#define FA_CUDA_PACKED_WAVES_MAX 6

/* Time to join a block of rows of @parts parts. @shared: sm90/packed_share.h does it. */
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
