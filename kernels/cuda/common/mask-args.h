/*
 * Arguments of a kernel with masks, passed by value (meaning: kernels/attention.h). The host has
 * bounded all fields; lists and words are the client's, and may change at any time.
 */
#pragma once

#include "kernels/cuda/common/args.h"

/* Key blocks of a sequence at most, if there are lists. */
#define FA_CUDA_MASK_BLOCKS_MAX 8192
/* Row blocks that a block of rows may have. */
#define FA_CUDA_MASK_LISTS 2

/* A bit for each key block of each list, and two numbers. */
#define FA_CUDA_MASK_WORDS (FA_CUDA_MASK_BLOCKS_MAX / 32)
#define FA_CUDA_MASK_BYTES (FA_CUDA_MASK_LISTS * FA_CUDA_MASK_WORDS * 4 + 16)

struct fa_cuda_mask {
	const int32_t *offsets, *columns;
	int64_t offsets_batch, offsets_head; /* strides in elements */
	int64_t columns_batch, columns_head;
	int32_t n_columns;
	int32_t block_rows, block_keys; /* 0: no blocks */

	int32_t pattern_tokens; /* 0: no pattern */
	int32_t pattern_local, pattern_stride, pattern_step, pattern_first;

	const uint32_t *bits; /* NULL: none */
	int64_t bits_batch, bits_head, bits_row, row_words;
};

struct fa_cuda_masked_attention {
	struct fa_cuda_attention attention;
	struct fa_cuda_mask mask;
};
