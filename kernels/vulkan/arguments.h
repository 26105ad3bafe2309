/*
 * What the host hands to a kernel: one structure for each kernel, in memory that the device reads.
 * C and GLSL both include this file, so that there is one definition. Addresses are the device's.
 * Fields are ordered so that both languages put them at the same offsets.
 */
#ifndef FA_VULKAN_ARGUMENTS_H
#define FA_VULKAN_ARGUMENTS_H

#ifndef VULKAN /* which GLSL defines */
#include <stdint.h>
#endif

#define FA_VULKAN_LANES 32 /* invocations of a workgroup, and keys of a block */
/* Of decode.comp: invocations of a workgroup, and how many pieces of 16 bytes each loads at once. */
#define FA_VULKAN_DECODE_LANES 128
#define FA_VULKAN_DECODE_LOADS 4
#define FA_VULKAN_SPLITS_MAX 64 /* parts of a row's keys */

/* Which memory attention reads K and V from. */
#define FA_VULKAN_DENSE 0 /* tensors */
#define FA_VULKAN_POOL 1  /* pages of the KV pool */
#define FA_VULKAN_OWN 2   /* a client's own pages */

#define FA_VULKAN_NO_TREE 0xffffffffu

struct fa_vulkan_sequence {
	uint64_t tile_begin;       /* number of the sequence's first tile */
	uint32_t q_begin, k_begin; /* tokens */
	uint32_t n_q, n_k;
	uint32_t first;       /* tokens before it are hidden */
	uint32_t table_start; /* index of the entry of page 0, modulo 2^32 */
	uint32_t tree_start;  /* index of the first word of the mask */
	uint32_t prefix;      /* keys that causal hides from no row */
};

/* Strides count elements. */
struct fa_vulkan_attend {
	uint64_t q, k, v, result, lse; /* lse 0: not wanted */
	uint64_t sequences;            /* 0: all have n_q rows and n_k keys */
	uint64_t slopes, sinks;        /* 0: none */
	uint64_t stop;                 /* a word: not 0 once the request is cancelled */
	uint64_t chunks;               /* of the pool: addresses */
	uint64_t table, tree, positions;
	uint64_t lengths, cu_q;      /* of a client's own pages; cu_q 0: all have max_q rows */
	uint64_t k_scales, v_scales; /* of each KV head; 0: 1, or each token has its own */
	int64_t q_batch, q_token, q_head;
	int64_t k_batch, k_token, k_head;
	int64_t v_batch, v_token, v_head;
	int64_t result_batch, result_token, result_head;
	int64_t lse_batch, lse_token, lse_head;
	int64_t left, right; /* visible keys before and after a row's position */
	int64_t right_tree; /* the same for rows of a tree, whose masks replace causal, and prefixes */
	int64_t chunk_tokens; /* 0: rows see all chunks */
	uint64_t prefixes;    /* [batch] without sequences, or of a client's own pages; 0: none */
	int64_t layer_offset, v_offset; /* bytes within a chunk */
	int64_t table_stride, longest;  /* of a client's own pages: entries; tokens */
	int64_t total_q;
	/* Masks, as in kernels/attention.h. */
	uint64_t offsets, columns; /* 0: no blocks */
	int64_t offsets_batch, offsets_head, columns_batch, columns_head, n_columns;
	uint64_t bits; /* 0: no such mask */
	int64_t bits_batch, bits_head, bits_row, bits_words;
	int64_t pattern_tokens; /* 0: no pattern */
	int64_t pattern_local, pattern_stride, pattern_step, pattern_first;
	int64_t block_rows, block_keys;
	uint64_t blocks; /* of a KV head, if there are no sequences */
	/* Of keys that are split: [tile][row][split] sums of V, and the maximum and the sum of weights, which is -1
	 * where there is no such row. */
	uint64_t parts, part_sums;
	uint32_t batch, kv_heads, group;
	uint32_t head_dim, head_dim_v;
	uint32_t n_q, n_k;
	uint32_t page_tokens, last_page;
	uint32_t v_row;        /* elements from row to row of V in the pool */
	uint32_t token_scales; /* each token in the pool has scales */
	uint32_t chunk_shift;  /* log2 of a chunk's bytes */
	float scale, softcap;  /* softcap 0: none */
	uint32_t splits;       /* of a tile's keys */
};

/* What tokens.comp does with rows; groups are (layer, token, row), the row last. */
#define FA_VULKAN_APPEND 0     /* k, v and q to the pool, and to q_out */
#define FA_VULKAN_READ 1       /* the pool to k and v */
#define FA_VULKAN_APPEND_OWN 2 /* k and v to a client's own pages */
#define FA_VULKAN_READ_OWN 3   /* the pool to a client's own pages */
#define FA_VULKAN_WRITE_OWN 4  /* the reverse */
#define FA_VULKAN_MOVE 5       /* within the pool; groups are (layer, sequence, row) */

/* Strides count elements. Rows of a token: kv_heads of K, kv_heads of V, heads of q. */
struct fa_vulkan_tokens {
	uint64_t k, v, q, q_out; /* 0: there is none */
	uint64_t sequences; /* struct fa_vulkan_sequence; k_begin: lengths_before; n_k: length */
	uint64_t chunks, table;
	uint64_t k_scales, v_scales; /* [layer][kv_head]; 0: each token has its own, or 1 */
	uint64_t cos, sin, positions;
	uint64_t turns;          /* [dim / 2]: 2^64 times the turns of a position, modulo 2^64 */
	uint64_t slots;          /* int64, in memory of the client's */
	uint64_t k_data, v_data; /* addresses of a client's own pages, [layer] */
	uint64_t pages;          /* of a client's own pages, in order */
	uint64_t from, to;       /* moves: see struct fa_paged_move; cu_moves are in q_begin */
	int64_t k_page, k_token, k_head;
	int64_t v_page, v_token, v_head;
	/* FA_VULKAN_APPEND_OWN: of k and v, as k_token and so on are of the pages. */
	int64_t q_token, q_head, q_out_token, q_out_head;
	int64_t layer_stride, v_offset; /* bytes within a chunk */
	uint64_t tokens;                /* of a layer; moves: sequences */
	uint64_t n_slots;               /* of a client's own pages: tokens */
	uint32_t batch, kv_heads, heads;
	uint32_t head_dim, head_dim_v, v_row;
	uint32_t page_tokens, chunk_shift, token_scales;
	uint32_t layer; /* the first */
	uint32_t rotary_dim, interleaved, table_positions;
	uint32_t own_page_tokens, offset; /* of a client's own pages */
	uint32_t rotary_first;
};

/* Copies pages, or fills them with zeros. Groups are (page, layer, part of PART bytes). */
#define FA_VULKAN_PART_BYTES 4096
struct fa_vulkan_pages {
	uint64_t chunks, from, to; /* from 0: zeros */
	int64_t layer_stride, v_offset;
	uint32_t k_bytes, v_bytes;
	uint32_t k_parts, v_parts;
	uint32_t layers, chunk_shift;
};

struct fa_vulkan_merge {
	uint64_t a, b, result, lse_a, lse_b, lse_result;
	int64_t a_token, a_head, b_token, b_head, result_token, result_head;
	int64_t lse_a_token, lse_a_head, lse_b_token, lse_b_head, lse_result_token, lse_result_head;
	uint32_t heads, head_dim_v;
};

#endif
