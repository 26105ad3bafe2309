/*
 * What the kernels over pages are given: plain structs, by value, and records that the
 * plan of a step uploads. Filled by the planner (paged-plan.h) alone, so kernels trust every field.
 * Strides are in bytes.
 */
#pragma once

#include "kernels/cuda/common/args.h"

#include <stdint.h>

/* Tokens of a strip, the least that lies in one page, and of a tile of the plan. */
#define FA_CUDA_PAGED_STRIP 16
#define FA_CUDA_PAGED_TILE 64

#define FA_CUDA_PAGED_NO_TREE 0xffffffffu
#define FA_CUDA_PAGED_PARTS_MAX (1u << 24) /* heads and slices, for kernels that copy by TMA */
#define FA_CUDA_PAGED_BLOCKS 4096          /* of a launch of decode at most */
#define FA_CUDA_PAGED_TAIL_COUNTERS 16384  /* parts of all tails of a launch at most */
#define FA_CUDA_PAGED_COUNTERS (FA_CUDA_PAGED_BLOCKS + FA_CUDA_PAGED_TAIL_COUNTERS)
/* What a launch carries itself, of few sequences: what lies in memory, and be it the GPU's, is
 * there later than the launch's own arguments, which have 4096 bytes at most. */
#define FA_CUDA_PAGED_ITEMS_HERE 8
#define FA_CUDA_PAGED_TABLE_HERE 384

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
	uint32_t tile; /* tiles of all items before it */
	/* Of one part: a row block of a KV head, a slice of V; at least 1 besides tiles_end. */
	uint32_t tiles;
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

/*
 * What the kernels in pieces (sm80/paged_pieces.h) are to know of an item besides, [16 bytes].
 *
 * A prefix is what several sequences begin with: an item of its own, with the rows of all of
 * them, which all see all its tokens. Each of the sequences then is an item for the tokens
 * behind it, its tail.
 */
struct fa_cuda_paged_piece {
	/* Blocks divide units of so many tiles, which are computed each on its own. 0: tiles. */
	uint32_t unit;
	uint32_t parts;   /* of all items before it */
	uint32_t tails;   /* of a prefix: its first; of a tail: itself, or FA_CUDA_PAGED_NO_TAIL */
	uint32_t n_tails; /* of a prefix, else 0 */
};

#define FA_CUDA_PAGED_NO_TAIL 0xffffffffu

/* Where an item's shares are that are not units': of part p, as many as there are blocks between
 * those of tiles tile + p tiles and the part's last, from the place on that is the sum of parts, p
 * and the first block. */
struct fa_cuda_paged_shares {
	uint32_t tile, tiles;
	uint32_t parts;      /* before p = 0 */
	uint32_t row_blocks; /* of a KV head */
};

/* A row block of an item whose tokens are behind a prefix, [64 bytes]; those of one prefix
 * follow one another, as their rows do. It has all that its end is to know, so that this is not
 * found by asking one array after the other. */
struct fa_cuda_paged_tail {
	uint32_t row, rows;                      /* of the prefix's rows: its first, and how many */
	uint32_t first_q;                        /* of the item, its first row in dense tensors */
	uint32_t first;                          /* of the item's rows, this block's first */
	struct fa_cuda_paged_shares own, prefix; /* own: p = 0 is this row block's first part */
	uint32_t item, prefix_item;
	uint32_t unused[2];
};

/* A block of query rows of the forward kernels. */
struct fa_cuda_paged_block {
	uint32_t item, row;
};

/*
 * Attention. Decode: the blocks of the launch divide all tiles evenly, as contiguous
 * ranges: the first tiles_extra blocks have tiles_each + 1, the others tiles_each. The first
 * tiles_end of each part stand for the time that its end takes and have no tokens: nobody
 * computes those alone, so whose range ends with them ends before them.
 */
struct fa_cuda_paged_attention {
	/* cu_seqlens, seqlens and grid fields are unused, and k and v but in decode by bulk copies:
	 * rows of the new tokens, which the launch is to put into pages; data NULL: they are
	 * there. */
	struct fa_cuda_attention attention;
	int32_t tree_right; /* window_right without causal, which a tree's mask replaces */
	const uint32_t *tree;

	/* What a block needs before it can ask for anything is together, but for the item that it
	 * begins in and whether the launch has new tokens; here, too, what is fetched at once is. */
	struct fa_cuda_pages pages;
	uint32_t tiles_each, tiles_extra, tiles_end; /* tiles_end: 0 with units; < tiles_each */
	/* Decode: all items, if there are no more; else 0. */
	uint32_t items_here;

	int32_t kv_heads, slices;
	uint32_t n_items; /* decode */
	/* Rows of a place, in pieces. Else, where there are as many as the kernel has, those of them
	 * that are used; 0: blocks have no share of a part, but parts. */
	uint32_t place_rows;
	/* Decode: a partial result of each block's first and of its last part:
	 * [block][2][row][dim_v of the kernel], and of each row maximum and sum. */
	float *partials;
	float *partial_sums; /* [block][2][row][2] */
	/* [grid]: 2^16 times the epoch of the launch that used it last, and its arrivals. */
	uint64_t *counters;
	uint64_t epoch; /* below 2^48, and above that of every earlier launch */
	const uint32_t *positions;
	const struct fa_cuda_paged_item *items;

	/* Where there are items here: their first tiles, and UINT32_MAX behind the last's. */
	uint32_t first_tiles[FA_CUDA_PAGED_ITEMS_HERE];
	struct fa_cuda_paged_item first_items[FA_CUDA_PAGED_ITEMS_HERE];

	const uint32_t *block_items; /* decode: [grid], of each block's first tile */
	/* Decode in pieces. A share's place is its own: units lie one behind another, and a
	 * part's shares else are at its number and its blocks' together. [place][row]. */
	const struct fa_cuda_paged_piece *pieces; /* of each item */
	const struct fa_cuda_paged_tail *tails;
	const uint32_t *tokens; /* of all prefixes: whose rows in dense tensors; first_q is where */
	uint64_t *tail_counters;                  /* [tail][KV head][slice], as counters */
	const struct fa_cuda_paged_block *blocks; /* forward */
	/* For kernels that copy by TMA: of a box of K or V; warps that load; pairs of blocks, of all
	 * heads and slices and of those of a section. */
	int32_t box_keys;
	uint32_t loaders, pairs, section_pairs;
};

/* Decode that carries its items and the pages' table, and reads neither in memory. */
struct fa_cuda_paged_small_attention {
	struct fa_cuda_paged_attention plain; /* items_here is not 0 */
	uint32_t table[FA_CUDA_PAGED_TABLE_HERE];
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
#define FA_CUDA_GATE_THREADS 32

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
	struct fa_cuda_done done; /* as in struct fa_cuda_attention */
};

/* The same, with all that lies in memory else. */
struct fa_cuda_paged_small_append {
	struct fa_cuda_paged_append plain;
	struct fa_cuda_paged_item items[FA_CUDA_PAGED_ITEMS_HERE];
	uint32_t table[FA_CUDA_PAGED_TABLE_HERE];
};

/* Where pages hold codes of a byte; FA_STORE_E4M3 and _INT8 as enum fa_paged_store. */
#define FA_STORE_E4M3 1
#define FA_STORE_INT8 2
#define FA_CODES_BF16 3        /* as enum fa_attention_dtype */
#define FA_CUDA_CODES_HEADS 64 /* KV heads that have scales of their own, at most */

struct fa_cuda_paged_codes {
	int32_t store, dtype; /* dtype: of tensors */
	int32_t token_scales; /* each token's row has its own; else heads have */
	/* From where a page's K, or V, begins in a layer to its tokens' scales, in bytes. */
	uint32_t k_scales_at, v_scales_at;
	float k_scales[FA_CUDA_CODES_HEADS], v_scales[FA_CUDA_CODES_HEADS]; /* of heads */
};

/* Kernels take these where plain ones take the first member. */
struct fa_cuda_paged_attention_codes {
	struct fa_cuda_paged_attention attention;
	struct fa_cuda_paged_codes codes;
};

/* As struct fa_cuda_paged_small_attention. */
struct fa_cuda_paged_small_attention_codes {
	struct fa_cuda_paged_attention_codes plain; /* items_here is not 0 */
	uint32_t table[FA_CUDA_PAGED_TABLE_HERE];
};

struct fa_cuda_paged_append_codes {
	struct fa_cuda_paged_append append;
	struct fa_cuda_paged_codes codes;
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
	struct fa_cuda_done done;
};

/* Copy and clear: grid (pages, layers). */
struct fa_cuda_paged_copy {
	char *pool;
	int64_t layer_stride, v_offset, k_bytes, v_bytes;
	const uint32_t *from, *to; /* from NULL: clear */
	struct fa_cuda_done done;
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
	/* As in struct fa_cuda_paged_codes; K's 0: tokens have no scales. */
	uint32_t k_scales_at, v_scales_at;
	const struct fa_cuda_paged_moved *sequences;
	const uint32_t *from;
	struct fa_cuda_done done;
};
