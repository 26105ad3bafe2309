/*
 * Arguments of kernels over tensors with packed rows (sm90/packed_source.h).
 */
#pragma once

#include "kernels/cuda/common/args.h"

#include <stdint.h>

/* If a block of rows has more parts, each run of so many is joined first. */
#define FA_CUDA_PACKED_RUN 8u
/* Counters per warp of rows: one for all parts or runs, then one per run; or those of
 * sm90/packed_share.h. */
#define FA_CUDA_PACKED_COUNTERS(parts)                                                             \
	((parts) <= 5 * FA_CUDA_PACKED_RUN                                                         \
	         ? 6                                                                               \
	         : 1 + ((parts) + FA_CUDA_PACKED_RUN - 1) / FA_CUDA_PACKED_RUN)
/* From this number of parts on, several lanes share a slice when a warp joins it. */
#define FA_CUDA_SHARE_PARTS_SPLIT 32u
#define FA_CUDA_SHARE_PARTS_MAX 255u
/* How long a thread block waits for the other parts of its rows. */
#define FA_CUDA_PACKED_WAIT_NS 20000

struct fa_cuda_packed_attention {
	struct fa_cuda_attention attention;
	/* A unit is some tiles of keys of a block of rows, for one thread block. With equal lengths
	 * units are numbered by sequence, KV head, part of the keys, block of rows; those of a
	 * ragged batch are listed. */
	uint32_t n_units;
	uint32_t parts;      /* of each block's tiles; 0: ragged */
	uint32_t blocks;     /* blocks of rows per KV head; 0: ragged */
	uint32_t groups;     /* groups of 64 rows per block */
	uint32_t pack_shift; /* a group has 2^pack_shift tokens of 64 >> pack_shift heads */
	int32_t pack_sets;   /* sets of 64 >> pack_shift heads per KV head */
	uint32_t kv_heads;
	uint32_t join_wait_ns; /* 0: a block of rows' last unit joins all parts alone */
	/* Filled by fa_cuda_packed_set(). */
	float *unit_partials;
	/* 2^16 times the epoch of the last launch that used it, plus arrivals. */
	uint64_t *unit_counters;
	uint64_t epoch; /* below 2^48, above all earlier launches' */

	/* Units of a ragged batch, [n_units], and their items. An item's table_start is its
	 * sequence's first token in K and V. Filled by fa_cuda_packed_list(). */
	const struct fa_cuda_paged_unit *units;
	const struct fa_cuda_paged_item *items;
};
