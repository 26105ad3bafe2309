/*
 * Arguments of the kernels over pages, passed by value, and records that the plan of a step
 * uploads. Only the planner (paged-plan.h) fills them, so kernels trust every field. Strides are in
 * bytes.
 *
 * Terms of decode: an item is a sequence, or a prefix that sequences share. A part is an output
 * tile of an item: a block of rows of one KV head, and a slice of V's columns. A tile is 64 keys of
 * a part. Thread blocks get equal contiguous ranges of all tiles; a segment is a block's range
 * within one part. Where a part has several segments, each stores a partial result.
 */
#pragma once

#include "kernels/cuda/common/args.h"

#include <stdint.h>

/* Tokens of a strip. A page is one or more whole strips. */
#define FA_CUDA_PAGED_STRIP 16
#define FA_CUDA_PAGED_TILE 64

#define FA_CUDA_PAGED_NO_TREE 0xffffffffu
/* Limits: heads * slices, for kernels that copy by TMA; thread blocks of a decode launch; parts of all
 * suffixes of a launch; units of a launch of packed rows; warps of such a launch whose rows are divided
 * over units. */
#define FA_CUDA_PAGED_HEAD_SLICES_MAX (1u << 24)
#define FA_CUDA_PAGED_BLOCKS 4096
#define FA_CUDA_PAGED_SUFFIX_COUNTERS 16384
#define FA_CUDA_PAGED_UNITS 2047
#define FA_CUDA_PAGED_UNIT_COUNTERS 16384
#define FA_CUDA_PAGED_COUNTERS                                                                     \
	(FA_CUDA_PAGED_BLOCKS + FA_CUDA_PAGED_SUFFIX_COUNTERS + FA_CUDA_PAGED_UNIT_COUNTERS)
/* Limits inside a launch's arguments (4096 bytes at most), which arrive before memory can be
 * read. */
#define FA_CUDA_PAGED_INLINE_ITEMS 8
#define FA_CUDA_PAGED_INLINE_TABLE 384

struct fa_cuda_pages {
	char *k, *v;           /* slot 0's, head 0 */
	const uint32_t *table; /* slots */
	uint64_t page_magic;   /* strip * page_magic >> 32 is the strip's page */
	uint32_t page_strips;
	uint32_t k_row, v_row; /* bytes from token to token; a multiple of 16 */
};

/* An item whose rows are packed (sm90/packed_source.h). Sequences that share a prefix are one item
 * with the prefix's keys, followed by an item with the other keys of each. */
struct fa_cuda_packed_item {
	int32_t diagonal;            /* row i is at key i + diagonal */
	uint32_t begin_row, end_row; /* other rows do not see the item's keys */
	uint32_t
		suffix; /* with a prefix: the first item that follows it; or FA_CUDA_PACKED_ALONE */
};

#define FA_CUDA_PACKED_ALONE 0xffffffffu

/* A sequence or a prefix of a step, [48 bytes]. */
struct fa_cuda_paged_item {
	union {
		struct {
			uint32_t tile; /* tiles of all earlier items */
			/* Tiles per part; at least 1 more than epilogue_tiles. */
			uint32_t tiles;
			uint32_t parts;
			uint32_t row_blocks;
		};
		struct fa_cuda_packed_item packed;
	};
	uint32_t first_q;
	uint32_t n_q, n_k;
	uint32_t begin;       /* rows see tokens of [begin, n_k); tiles start at begin's strip */
	uint32_t first;       /* earlier tokens are hidden */
	uint32_t table_start; /* modulo 2^32 */
	uint32_t tree_start;  /* words, or FA_CUDA_PAGED_NO_TREE */
	/* Token index of new row 0; n_k: no append. Over a client's own pages, which no attention
	 * appends to: in decode, every row sees the keys before it that its window and bounds leave;
	 * of many rows, the position behind the last row's. */
	uint32_t append;
};

/*
 * What FA_CUDA_PAGED_SPLIT adds to an item (paged_combine.h), [16 bytes]. A prefix that sequences
 * share is an item with all of their rows, which see all its tokens. Each sequence is also an item
 * for its remaining tokens, its suffix.
 */
struct fa_cuda_paged_split {
	/* Size of a fixed split in tiles; thread blocks divide the splits among them. 0: they
	 * divide the tiles. */
	uint32_t split_tiles;
	uint32_t parts; /* parts of all earlier items */
	uint32_t
		/* A prefix's first suffix; a suffix's own index; or FA_CUDA_PAGED_NO_SUFFIX. */
		suffixes;
	uint32_t n_suffixes;
};

#define FA_CUDA_PAGED_NO_SUFFIX 0xffffffffu

/* Partial results of an item without fixed splits. Part p has tiles [tile + p * tiles, tile + (p +
 * 1) * tiles) and one result per thread block with tiles of it; the first has index parts + p +
 * number of that block. */
struct fa_cuda_paged_partial_range {
	uint32_t tile, tiles;
	uint32_t parts; /* before p = 0 */
	uint32_t row_blocks;
};

/* A row block of a suffix, [64 bytes]; those of a prefix are contiguous, like their rows. Has all
 * that its reduction needs, to save dependent loads. */
struct fa_cuda_paged_suffix {
	uint32_t row, rows; /* among the prefix's rows */
	uint32_t first_q;   /* the item's first row in dense tensors */
	uint32_t first;     /* this row block's first row, among the item's rows */
	struct fa_cuda_paged_partial_range own,
		prefix; /* own: p = 0 is this row block's first part */
	uint32_t item, prefix_item;
	uint32_t unused[2];
};

struct fa_cuda_paged_block {
	uint32_t item, row;
};

/* A block of packed rows (sm90/packed_source.h) and the tiles of keys that one thread block
 * computes for it, [32 bytes]. */
struct fa_cuda_paged_unit {
	uint32_t item;
	uint32_t head, token; /* the first row's */
	uint32_t last, count; /* tiles of keys */
	/* part + FA_CUDA_PAGED_UNIT_PARTS * parts + set << FA_CUDA_PAGED_UNIT_SET_SHIFT. parts:
	 * units of the block of rows; part: this unit's number among them, in the order of keys;
	 * set: the first head's set, within its KV head. */
	uint32_t parts_set;
	/* If the block has several parts: index of part 0's partial result, and of the block's
	 * first counter. */
	uint32_t partial, counter;
};

#define FA_CUDA_PAGED_UNIT_PARTS 2048u
#define FA_CUDA_PAGED_UNIT_SET_SHIFT 22
#define FA_CUDA_PAGED_UNIT_SETS_MAX 1023

/* Decode: the first tiles_extra blocks have tiles_each + 1 tiles, the others tiles_each. The first
 * epilogue_tiles of each part are empty: they stand for the time of its reduction. */
struct fa_cuda_paged_attention {
	/* cu_seqlens, seqlens and grid fields are unused. k and v: in decode by bulk copies, new
	 * tokens' rows that the launch writes into the pages, data NULL: none; else unused. */
	struct fa_cuda_attention attention;
	int32_t tree_right; /* window_right as if not causal: a tree's mask replaces causal */
	const uint32_t *tree;

	/* A block needs these before its first load of keys: 64-byte groups in a row. */
	struct fa_cuda_pages pages;
	uint32_t tiles_each, tiles_extra,
		epilogue_tiles; /* epilogue_tiles: 0 with fixed splits; < tiles_each */
	/* Decode: all items if inline, else 0. */
	uint32_t inline_items;

	int32_t kv_heads, slices;
	uint32_t n_items; /* decode */
	/* Rows of a partial result; without FA_CUDA_PAGED_SPLIT, only those that the kernel uses.
	 * 0: no part is divided. */
	uint32_t partial_rows;
	/* Decode: partial results of each block's first and last part: [block][2][row][dim_v of the
	 * kernel], and each row's maximum and sum. */
	float *partials;
	float *partial_sums; /* [block][2][row][2] */
	/* [grid]: 2^16 times the epoch of the last launch that used it, plus arrivals. */
	uint64_t *counters;
	uint64_t epoch; /* below 2^48, and above every earlier launch's */
	const uint32_t *positions;
	const struct fa_cuda_paged_item *items;

	uint32_t first_tiles[FA_CUDA_PAGED_INLINE_ITEMS];
	struct fa_cuda_paged_item first_items[FA_CUDA_PAGED_INLINE_ITEMS];

	const uint32_t *block_items; /* decode: [grid], the item of each block's first tile */
	/* With FA_CUDA_PAGED_SPLIT: [partial][row]; those of fixed splits in the order of splits,
	 * others as in struct fa_cuda_paged_partial_range. */
	const struct fa_cuda_paged_split *splits;
	const struct fa_cuda_paged_suffix *suffixes;
	const uint32_t *tokens;
	uint64_t *suffix_counters;                /* [suffix][KV head][slice], as counters */
	const struct fa_cuda_paged_block *blocks; /* prefill */
	/* For kernels that copy by TMA: keys per box of K or V; number of warps that load; pairs of
	 * blocks per head and slice, of all heads and slices, and of a section. Decode of MLA: loaders
	 * is the number of thread blocks of a team (sm90/latent.h), and ranges are those of teams. */
	int32_t box_keys;
	uint32_t loaders, pairs, section_pairs;
	/* Packed rows: a group has 2^pack_shift tokens of some heads; a KV head has pack_sets sets
	 * of them. */
	const struct fa_cuda_paged_unit *units;
	uint32_t n_units, pack_shift;
	int32_t pack_sets;
	uint32_t join_wait_ns; /* as in packed-args.h */
	float *unit_partials;
	uint64_t *unit_counters; /* used like counters */
};

/* Decode that reads neither items nor the page table. */
struct fa_cuda_paged_small_attention {
	struct fa_cuda_paged_attention plain; /* inline_items is not 0 */
	uint32_t table[FA_CUDA_PAGED_INLINE_TABLE];
};

#define FA_CUDA_ROTARY_DIM_MAX 256

struct fa_cuda_rotary {
	int32_t half; /* angles; 0: no rotation */
	int32_t interleaved;
	const float *cos, *sin; /* [table_positions][half], or NULL */
	uint32_t table_positions;
	int32_t first;             /* element; a multiple of 8 */
	const uint32_t *positions; /* [new token], or NULL */
	/* [half]: angle at position 1, divided by 2 pi */
	double turns[FA_CUDA_ROTARY_DIM_MAX / 2];
};

#define FA_CUDA_APPEND_TOKENS 8
#define FA_CUDA_TOKENS_THREADS 256
#define FA_CUDA_GATE_THREADS 32

struct fa_cuda_paged_append {
	struct fa_cuda_pages pages;
	const struct fa_cuda_paged_item *items; /* every sequence, with or without new tokens */
	int32_t batch, tokens;
	int32_t heads, kv_heads;
	int32_t dtype;
	int32_t head_dim, head_dim_v;         /* in elements; head_dim_v 0: V is not written */
	int32_t aligned;                      /* all tensors' rows are 16-byte aligned */
	struct fa_cuda_tensor k, v, q, q_out; /* data NULL: not moved */
	struct fa_cuda_rotary rotary;
	struct fa_cuda_done done;
};

struct fa_cuda_paged_small_append {
	struct fa_cuda_paged_append plain;
	struct fa_cuda_paged_item items[FA_CUDA_PAGED_INLINE_ITEMS];
	uint32_t table[FA_CUDA_PAGED_INLINE_TABLE];
};

/* Pages with 8-bit codes; as enum fa_paged_store. */
#define FA_STORE_E4M3 1
#define FA_STORE_INT8 2
#define FA_STORE_DTYPE_BF16 3          /* as enum fa_attention_dtype */
#define FA_CUDA_QUANTISED_HEADS_MAX 64 /* the most KV heads with scales of their own */

struct fa_cuda_paged_quantised {
	int32_t store, dtype; /* dtype: of the tensors */
	int32_t token_scales; /* scales are per token and head; else per head */
	/* Offset in bytes of the scales from the page's K, or V, in a layer. */
	uint32_t k_scales_at, v_scales_at;
	float k_scales[FA_CUDA_QUANTISED_HEADS_MAX],
		v_scales[FA_CUDA_QUANTISED_HEADS_MAX]; /* scales of heads */
};

/* Writes codes as bf16, [kv_head][row][dim], for kernels over pages of bf16. A thread block has
 * FA_CUDA_WIDEN_TOKENS rows of K or V of a head. Grid: (blocks, 2 * kv_heads). */
#define FA_CUDA_WIDEN_TOKENS 64u

struct fa_cuda_paged_widen {
	struct fa_cuda_pages pages;
	/* An item's tokens [begin, n_k) go to rows from its tile on; begin and tile are multiples of
	 * FA_CUDA_WIDEN_TOKENS. Tokens before first may be in no page: their rows are zeros. */
	const struct fa_cuda_paged_item *items;
	const uint32_t *block_items;
	uint32_t rows; /* of a head */
	int32_t head_dim, head_dim_v;
	char *k, *v;
	struct fa_cuda_paged_quantised quantised;
	struct fa_cuda_done done;
};

struct fa_cuda_paged_attention_quantised {
	struct fa_cuda_paged_attention attention;
	struct fa_cuda_paged_quantised quantised;
};

struct fa_cuda_paged_small_attention_quantised {
	struct fa_cuda_paged_attention_quantised plain; /* inline_items is not 0 */
	uint32_t table[FA_CUDA_PAGED_INLINE_TABLE];
};

/*
 * Attention over a client's own pages (FA_PAGED_ATTEND_OWN). Page table, lengths and cu_q are
 * device memory that the client may write at any time. The first launch reads lengths and cu_q once
 * and writes clamped items; later kernels trust these, and bound each table entry that they read.
 */

/* How the device divided the items over thread blocks. Written by the first launch. */
struct fa_cuda_own_ranges {
	uint32_t tiles_each, tiles_extra; /* as in struct fa_cuda_paged_attention */
	uint32_t blocks;                  /* thread blocks of decode that have tiles */
	uint32_t forward_blocks;          /* blocks of rows of the sequences that do not decode */
};

/* What is planned, by a launch of one block before attention or by each block of it. */
struct fa_cuda_own_plan {
	struct fa_cuda_done done;
	const int32_t *lengths, *cu_q; /* cu_q NULL: each sequence has max_q rows */
	int32_t batch;
	uint32_t max_q, total_q, max_k;
	uint32_t table_stride;               /* entries, modulo 2^32 */
	uint32_t forward_rows, forward_from; /* sequences with this many rows do not decode */
	uint32_t rows, group, parts;         /* decode: rows of a part; kv_heads * slices */
	uint32_t whole;
	int32_t window_left; /* FA_CUDA_WINDOW_MAX: unbounded */
	/* Chunks and prefixes divide a sequence's rows into items (fa_own_part()). */
	uint32_t chunk;          /* tokens of an attention chunk; 0: no chunks */
	const int32_t *prefixes; /* [batch], the client's; NULL: no prefixes */
	uint32_t part_tokens;    /* decode: rows of an item; 0: all of a sequence */
	/* Local and strided blocks: numbers of struct fa_attention_pattern. */
	uint32_t heads;
	int32_t pattern_stride, pattern_step, pattern_first; /* stride 0: no pattern */
	uint32_t *columns;                                   /* [heads], as in struct fa_cuda_own */
	uint32_t items_max;                                  /* of decode, and of many rows */
	uint32_t blocks, part_blocks; /* most thread blocks of decode; most of them for each part */
	uint32_t forward_blocks_max;
	struct fa_cuda_own_ranges *ranges;
	struct fa_cuda_paged_item *items, *forward_items; /* [items_max] */
	uint32_t *block_items;                            /* [blocks] */
	struct fa_cuda_paged_block *forward_blocks;       /* [forward_blocks_max] */
};

/* Batches of at most so many sequences are planned in shared memory. */
#define FA_CUDA_OWN_SHARED_ITEMS 128

struct fa_cuda_own_shared_plan {
	struct fa_cuda_paged_item items[FA_CUDA_OWN_SHARED_ITEMS];
	struct fa_cuda_own_ranges ranges;
	/* of each warp's items */
	uint64_t tiles[FA_CUDA_OWN_SHARED_ITEMS / 32];
	uint32_t n[FA_CUDA_OWN_SHARED_ITEMS / 32];
};

/* Bounds of prefill that is planned in shared memory. */
#define FA_CUDA_OWN_PREFILL_ITEMS 16
#define FA_CUDA_OWN_PREFILL_BLOCKS 128

struct fa_cuda_own_prefill_plan {
	/* items[].tile: number of earlier blocks. */
	struct fa_cuda_paged_item items[FA_CUDA_OWN_PREFILL_ITEMS];
	struct fa_cuda_paged_block blocks[FA_CUDA_OWN_PREFILL_BLOCKS];
	uint32_t costs[FA_CUDA_OWN_PREFILL_BLOCKS]; /* keys that a block sees, not sorted */
	uint32_t blocks_n;
};

/* Bounds of packed rows, per KV head; each block of threads plans for itself, in shared memory. */
#define FA_CUDA_OWN_PACKED_ITEMS 64
#define FA_CUDA_OWN_PACKED_BLOCKS 160
#define FA_CUDA_OWN_PACKED_WARPS 12

struct fa_cuda_own_packed_plan {
	struct fa_cuda_paged_unit unit; /* this thread block's; count 0: it sees no keys */
	struct fa_cuda_paged_item item; /* the unit's; n_q 0: there is no unit */
	uint32_t sequence[FA_CUDA_OWN_PACKED_ITEMS], first_q[FA_CUDA_OWN_PACKED_ITEMS],
		n_q[FA_CUDA_OWN_PACKED_ITEMS], n_k[FA_CUDA_OWN_PACKED_ITEMS];
	uint32_t blocks[FA_CUDA_OWN_PACKED_ITEMS];  /* blocks of rows of all earlier sequences */
	uint32_t counts[FA_CUDA_OWN_PACKED_BLOCKS]; /* numbers of tiles of blocks of rows */
	uint32_t sums[FA_CUDA_OWN_PACKED_WARPS], more[FA_CUDA_OWN_PACKED_WARPS]; /* of each warp */
};

/* An item's table_start is the index of its sequence's first entry, modulo 2^32. */
struct fa_cuda_own {
	/* NULL: the kernel plans for itself, in shared memory from shared_plan on. */
	const struct fa_cuda_own_ranges *ranges;
	uint32_t shared_plan;
	uint32_t table_bytes; /* to be prefetched by the launch's threads; 0: none */
	/* Of packed rows: units for each KV head; tiles that take as long as a join. */
	uint32_t units, join_tiles;
	int64_t k_page, k_token, k_head; /* bytes */
	int64_t v_page, v_token, v_head;
	/* (uint64_t)token * page_magic >> page_shift is the token's page. */
	uint64_t page_magic;
	uint32_t page_shift, page_tokens;
	uint32_t last_page;
	uint32_t whole;  /* each part has one tile, of all its keys: no part is divided */
	uint32_t starts; /* keys of items may begin behind key 0 */
	int32_t right;   /* decode: keys that a row sees behind itself, of a prefix, too */
	/* Local and strided blocks, of so many strips; 0: none. A row at position p in query head h
	 * sees block b if (b + pattern_local) * pattern_tokens > p, or if b modulo pattern_stride is
	 * columns[h]. */
	uint32_t pattern_strips;
	int32_t pattern_tokens, pattern_local, pattern_stride;
	const uint32_t *columns;
	uint32_t aligned; /* rows of K and V are 16-byte aligned */
	/* Pages are whole strips and a head's rows contiguous: copied at once; or copied by the
	 * maps. */
	uint32_t in_strips, in_boxes;
	const float *k_scales, *v_scales; /* e4m3: [kv_head], or NULL */
	struct fa_cuda_own_plan plan; /* ranges is not set; its pointers to results are unused */
};

struct fa_cuda_paged_attention_own {
	struct fa_cuda_paged_attention_quantised attention;
	struct fa_cuda_own own;
};

/* Head dim of the kernel over a client's pages of codes that does not compute patterns: wider ones do. */
#define FA_CUDA_OWN_CODES_NO_PATTERN 256

/* Append: a warp for each row of K, then of V; rows are [tokens][kv_heads]. */
struct fa_cuda_own_append {
	struct fa_cuda_done done;
	const int64_t *slots; /* page * page_tokens + token */
	uint32_t tokens, kv_heads;
	int32_t dtype, store;
	uint32_t head_dim, head_dim_v;
	struct fa_cuda_tensor from_k, from_v; /* data NULL: not written */
	char *k, *v;
	int64_t k_page, k_token, k_head, v_page, v_token, v_head; /* bytes */
	uint32_t page_tokens, pages;
	const float *k_scales, *v_scales; /* as in struct fa_cuda_own */
};

struct fa_cuda_paged_append_quantised {
	struct fa_cuda_paged_append append;
	struct fa_cuda_paged_quantised quantised;
};

struct fa_cuda_paged_partial {
	struct fa_cuda_tensor out;
	float *lse;
	int64_t lse_stride_token, lse_stride_head; /* elements */
};

struct fa_cuda_paged_merge {
	struct fa_cuda_paged_partial a, b, result;
	int64_t rows;
	int32_t heads, head_dim_v, dtype;
	int32_t aligned;
	struct fa_cuda_done done;
};

/* Copy and clear: grid (pages, layers). */
struct fa_cuda_paged_copy {
	char *pool;
	int64_t layer_stride, v_offset, k_bytes, v_bytes;
	const uint32_t *from, *to;
	struct fa_cuda_done done;
};

/* Strides in bytes of a client's own pages. */
struct fa_cuda_own_strides {
	int64_t page, token, head;
};

/* Copy between the pool and a client's own pages: grid (pool strips with tokens of [first, end),
 * layers of K and V). */
struct fa_cuda_paged_own_copy {
	struct fa_cuda_pages pages; /* of the first layer */
	int64_t layer_stride;
	const uint32_t *own_pages;
	/* [layer]; NULL: not copied. With both, grid y counts K and V of each layer. */
	char *const *k_data, *const *v_data;
	struct fa_cuda_own_strides k_strides, v_strides;
	/* Codes: [layer][kv_head]; NULL: each token's row has its own, as far from the page's K, or
	 * V, as in struct fa_cuda_paged_quantised. */
	const float *k_scales, *v_scales;
	uint32_t k_scales_at, v_scales_at;
	uint32_t first, end; /* tokens */
	uint32_t table_start;
	uint32_t own_page_tokens, offset; /* token first is at place offset of own_pages */
	int32_t kv_heads, head_dim, head_dim_v;
	int32_t dtype, store;
	uint32_t unit; /* bytes to copy at once: 16, 8, 4 or 2 */
	int32_t writes;
	struct fa_cuda_done done;
};

/* Moves tokens [begin, end) of a sequence, the first to token @to. */
struct fa_cuda_paged_moved {
	uint32_t begin, end, to, table_start;
};

/* Move: grid (sequences, layers). */
struct fa_cuda_paged_moves {
	struct fa_cuda_pages pages; /* of layer 0 */
	int64_t layer_stride;
	int32_t kv_heads, page_tokens;
	uint32_t k_bytes, v_bytes; /* bytes per row; v_bytes 0: V is the front of K */
	/* k_scales_at 0: tokens have no scales. */
	uint32_t k_scales_at, v_scales_at;
	const struct fa_cuda_paged_moved *sequences;
	const uint32_t *from;
	struct fa_cuda_done done;
};
