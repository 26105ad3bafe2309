/*
 * What the kernels over pages are given: plain structs, by value, and records that the
 * plan of a step uploads. Filled by paged-plan.c alone, so kernels trust every field.
 * Strides are in bytes.
 */
#pragma once

#include "kernels/cuda/common/args.h"

#include <stdint.h>

/* Tokens of a strip, the least that lies in one page, and of a tile of the plan. */
#define FA_CUDA_PAGED_STRIP 16
#define FA_CUDA_PAGED_TILE 64

#define FA_CUDA_PAGED_NO_TREE 0xffffffffu
#define FA_CUDA_PAGED_COUNTERS 4096 /* blocks of a launch at most */

/* One layer of a cache. */
struct fa_cuda_pages {
	char *k, *v;           /* slot 0's, head 0 */
	const uint32_t *table; /* slots */
	uint64_t page_magic;   /* strip * page_magic >> 32 is the strip's page */
	uint32_t page_strips;  /* strips of a page */
	uint32_t k_row, v_row; /* bytes from token to token; a multiple of 16 */
};

/* A sequence of a step, [48 bytes]. */
struct fa_cuda_paged_item {
	uint32_t tile;  /* tiles of all items before it */
	uint32_t tiles; /* of one part: a row block of a KV head, a slice of V; at least 1 */
	uint32_t parts;
	uint32_t row_blocks; /* of a KV head */
	uint32_t first_q;    /* its first row in dense tensors */
	uint32_t n_q, n_k;
	uint32_t begin; /* tokens that any row sees are [begin, n_k); tiles start at its strip */
	uint32_t first; /* tokens before it are hidden */
	uint32_t table_start; /* modulo 2^32 */
	uint32_t tree_start;  /* words, or FA_CUDA_PAGED_NO_TREE */
	uint32_t append;      /* token that new row 0 becomes; n_k: nothing is appended */
};

/* A block of query rows of the forward kernels. */
struct fa_cuda_paged_block {
	uint32_t item, row;
};

/*
 * Attention. Decode: the blocks of the launch divide all tiles evenly, as contiguous
 * ranges: the first tiles_extra blocks have tiles_each + 1, the others tiles_each.
 */
struct fa_cuda_paged_attention {
	struct fa_cuda_attention attention; /* k, v, cu_seqlens, seqlens, grid fields unused */
	struct fa_cuda_pages pages;
	const struct fa_cuda_paged_item *items;
	const uint32_t *block_items;              /* decode: [grid], of each block's first tile */
	const struct fa_cuda_paged_block *blocks; /* forward */
	const uint32_t *tree, *positions;
	int32_t tree_right; /* window_right without causal, which a tree's mask replaces */
	/* Decode: a partial result of each block's first and of its last part:
	 * [block][2][row][dim_v of the kernel], and of each row maximum and sum. */
	float *partials;
	float *partial_sums; /* [block][2][row][2] */
	/* [grid]: high word the epoch of the launch that used it last, low word arrivals. */
	unsigned long long *counters;
	uint32_t epoch;
	uint32_t tiles_each, tiles_extra;
	int32_t kv_heads, slices;
};

struct fa_cuda_rotary {
	int32_t half; /* angles; 0: no rotation */
	int32_t interleaved;
	const float *cos, *sin; /* [table_positions][half], or NULL */
	uint32_t table_positions;
	const uint32_t *positions; /* [new token], or NULL */
	double turns[128];         /* angle of position 1 / 2 pi; [half] */
};

#define FA_CUDA_APPEND_TOKENS 8 /* of a block */
#define FA_CUDA_TOKENS_THREADS 256

/* Append and read. */
struct fa_cuda_paged_append {
	struct fa_cuda_pages pages;
	const struct fa_cuda_paged_item *items; /* every sequence, with or without new tokens */
	int32_t batch, tokens;
	int32_t heads, kv_heads;
	int32_t dtype;
	int32_t head_dim, head_dim_v;         /* elements; V's 0: V is not written */
	int32_t aligned;                      /* rows of all tensors start on 16 bytes */
	struct fa_cuda_tensor k, v, q, q_out; /* data NULL: left out */
	struct fa_cuda_rotary rotary;
};

struct fa_cuda_paged_partial {
	struct fa_cuda_tensor out;
	float *lse;
	int64_t lse_stride_token, lse_stride_head; /* elements */
};

struct fa_cuda_paged_merge {
	struct fa_cuda_paged_partial a, b, result;
	int64_t rows; /* tokens * heads */
	int32_t heads, head_dim_v, dtype;
	int32_t aligned;
};

/* Copy and clear: grid (pages, layers). */
struct fa_cuda_paged_copy {
	char *pool;
	int64_t layer_stride, v_offset, k_bytes, v_bytes;
	const uint32_t *from, *to; /* from NULL: clear */
};

/* Moves [begin, end) of a sequence, the first to token @to. */
struct fa_cuda_paged_moved {
	uint32_t begin, end, to, table_start;
};

/* Move: grid (sequences, layers). */
struct fa_cuda_paged_moves {
	struct fa_cuda_pages pages; /* of layer 0 */
	int64_t layer_stride;
	int32_t kv_heads, page_tokens;
	uint32_t k_bytes, v_bytes; /* of a row; V's 0: it is the front of K */
	const struct fa_cuda_paged_moved *sequences;
	const uint32_t *from;
};
