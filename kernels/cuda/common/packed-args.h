/*
 * Arguments of the kernels over tensors whose rows are packed (sm90/packed_source.h), filled by the
 * planner (plan-packed.c). All sequences have equal lengths.
 */
#pragma once

#include "kernels/cuda/common/args.h"

#include <stdint.h>

/* Of a block of rows in more parts, runs of so many are joined first. */
#define FA_CUDA_PACKED_RUN 8u
/* Counters of a warp's rows: of all parts or runs, then of each run; or those of
 * sm90/packed_share.h. */
#define FA_CUDA_PACKED_COUNTERS(parts)                                                             \
	((parts) <= 5 * FA_CUDA_PACKED_RUN                                                         \
	         ? 6                                                                               \
	         : 1 + ((parts) + FA_CUDA_PACKED_RUN - 1) / FA_CUDA_PACKED_RUN)
/* From so many parts on, lanes of a warp that joins a slice take different parts of it. */
#define FA_CUDA_SHARE_PARTS_SPLIT 32u
#define FA_CUDA_SHARE_PARTS_MAX 255u
/* How long a thread block waits for the other parts of its rows. */
#define FA_CUDA_PACKED_WAIT_NS 20000

struct fa_cuda_packed_attention {
	struct fa_cuda_attention attention;
	/* A thread block computes a unit: some tiles of keys of a block of rows. Units are numbered
	 * by sequence, KV head, part of the keys, block of rows. */
	uint32_t n_units;
	uint32_t parts;      /* of each block's tiles */
	uint32_t blocks;     /* of rows, of a KV head */
	uint32_t groups;     /* of 64 rows in a block */
	uint32_t pack_shift; /* a group has 2^pack_shift tokens of 64 >> pack_shift heads */
	int32_t pack_sets;   /* such sets of heads in a KV head */
	uint32_t kv_heads;
	uint32_t join_wait_ns; /* 0: a block's last unit joins its parts alone */
	/* Filled by fa_cuda_packed_set(). */
	float *unit_partials;
	uint64_t *unit_counters; /* 2^16 times the epoch of the last launch that used it, plus
	                          * arrivals */
	uint64_t epoch;          /* below 2^48, and above every earlier launch's */
};
