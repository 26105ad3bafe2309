/*
 * The contract of the kernels over a paged KV cache, on every backend: where K and V lie, what a
 * step is, and what each operation does. Numbers mean what they mean in kernels/attention.h. Needs
 * only libc. The CPU kernels are the reference.
 *
 * The pool is one range of memory. A page holds page_tokens tokens of every layer of its cache and
 * is named by a slot. In layer l, token t of the page and KV head h lie at
 *   K: pool + slot * 256 + l * layer_stride + (h * page_tokens + t) * head_dim elements
 *   V: the same + v_offset,                   (h * page_tokens + t) * head_dim_v elements
 * With v_offset 0, V is the front of K (as in MLA): the first head_dim_v elements of K's row, with
 * K's scales if there are codes. It is never written separately.
 *
 * A cache may instead store 8-bit codes: an element is then code * scale, in fp32. There is one
 * scale per head, or one per token and head; the latter are fp32 and lie behind all codes of the
 * page's K, [kv_head][page_tokens], and behind those of its V. Appended rows are quantised in fp32
 * (K: after rotation, without rounding in between):
 *   - an infinity counts as the largest finite number of fp32;
 *   - a token's scale is its row's largest magnitude / 448 (E4M3) or / 127 (INT8), NaN not
 *     counted; a scale below 2^-126 becomes 0, and so does the whole row;
 *   - the code is x * (1 / scale), or 0 if the scale is 0, rounded to the nearest, ties to even,
 *     and clamped to +-448 or +-127;
 *   - NaN is code 0x7f in E4M3. In INT8 it makes the token's scale NaN; with per-head scales
 *     INT8 cannot express NaN and stores 0.
 * The scale of a visible token is therefore NaN or finite, and never negative; scales and codes of
 * other tokens may be anything.
 *
 * The tokens of a sequence lie in its pages in order: token j in entry j / page_tokens of the
 * sequence's table. Table entries of pages without a token of [first, length) may hold anything and
 * are not followed. Memory of a page that holds no such token may contain anything, even NaN, and
 * has no effect.
 *
 * cu_new, lengths_before, lengths, first, table_start, host_table, tree_start, cu_moves, from and
 * to are in host memory: checks and plans read them. All other pointers are to memory that the
 * kernels' device addresses.
 *
 * Attention also works over pages outside the pool (struct fa_paged_own), of which a client is the
 * owner.
 */
#pragma once

#include "kernels/attention.h"

#define FA_PAGED_SLOT_BYTES 256
#define FA_PAGED_PAGE_TOKENS_MIN 16 /* and a multiple of it */
#define FA_PAGED_PAGE_TOKENS_MAX 256
#define FA_PAGED_LENGTH_MAX ((uint32_t)1 << 29)
#define FA_PAGED_NO_TREE UINT32_MAX

enum fa_paged_store {
	FA_PAGED_PLAIN, /* elements of the cache's dtype */
	FA_PAGED_E4M3,  /* 8-bit float: 4 bits of exponent, 3 of mantissa, no infinity */
	FA_PAGED_INT8,  /* codes from -127 to 127 */
};

#define FA_PAGED_E4M3_MAX 448.0f
#define FA_PAGED_INT8_MAX 127.0f
/* Bounds of a head's scale. */
#define FA_PAGED_SCALE_MIN 0x1p-100f
#define FA_PAGED_SCALE_MAX 0x1p100f

struct fa_paged_cache {
	void *pool;                    /* 256-byte aligned */
	enum fa_attention_dtype dtype; /* of inputs, outputs and arithmetic */
	int32_t layers;
	int32_t kv_heads, head_dim, head_dim_v;
	int32_t page_tokens;
	int64_t layer_stride; /* bytes; a multiple of 16 */
	int64_t v_offset;     /* bytes; a multiple of 16; 0: V is the front of K */
	enum fa_paged_store store;
	/* With codes: the scales of heads, [layer][kv_head], in host memory; both NULL: each
	 * token's row has its own. Where V is the front of K, only k_scales is read. */
	const float *k_scales, *v_scales;
};

/* Sequences, and the last n_new = cu_new[b + 1] - cu_new[b] tokens of each. In dense tensors the
 * rows of these tokens follow one another: those of sequence b begin at cu_new[b]. */
struct fa_paged_step {
	int32_t batch;
	const uint32_t *cu_new;  /* [batch + 1], ascending from 0 */
	const uint32_t *lengths; /* [batch], new tokens included */
	/* [batch]: tokens [lengths_before, lengths) are appended, or read; n_new of them, or
	 * none. */
	const uint32_t *lengths_before;
	/* [batch], or NULL for zeros: tokens before it were dropped, or are hidden. */
	const uint32_t *first;
	const uint32_t *table; /* slots */
	/* [batch]: index in table of the entry of the sequence's page 0, modulo 2^32: page p is
	 * table[(uint32_t)(table_start + p)]. Pages before first / page_tokens need no entries, so
	 * a long sequence that keeps only a window has a short table. */
	const uint32_t *table_start;
	uint32_t table_entries;
	/* NULL, or a host copy of table. A plan may take over a short table, and its launches then
	 * do not read table; it can also find pages that sequences share. */
	const uint32_t *host_table;
};

/*
 * out = attention(q, K, V) for the new tokens of every sequence, exactly as kernels/attention.h
 * defines it with n_q = n_new and n_k = length, over the tokens from first on (which keep their
 * numbers).
 *
 * The new tokens of a sequence with a tree are a tree of speculated tokens: new token i sees every
 * earlier token, and new token j if bit j is set in row i of the sequence's mask. The mask replaces
 * causal. For windows, chunks, patterns and ALiBi a new token is at positions[] (fa_paged_tree_positions()),
 * and any other token at its index.
 */
struct fa_paged_attention {
	const struct fa_paged_cache *cache;
	const struct fa_paged_step *step;
	int32_t layer;
	int32_t heads;                     /* a multiple of kv_heads */
	struct fa_attention_tensor q, out; /* [new token][head][dim]; no stride_batch */
	float *lse;                        /* may be NULL */
	int64_t lse_stride_token, lse_stride_head;
	float scale;
	float softcap; /* 0: none */
	bool causal;
	int64_t window_left, window_right; /* -1: unbounded */
	const float *alibi_slopes;         /* [heads] or NULL */
	const float *sinks;                /* [heads] or NULL */
	/* A sequence's results do not depend, to the bit, on the rest of the step. */
	bool deterministic;

	/* Trees: NULL, or the masks, and the index in words of each sequence's first mask row
	 * ([batch]; FA_PAGED_NO_TREE: no tree). A row has (n_new + 31) / 32 words; bit j % 32 of
	 * word j / 32 is token j. */
	const uint32_t *tree;
	const uint32_t *tree_start;
	/* [new token]; needed if there are trees and windows, chunks, patterns or ALiBi. */
	const uint32_t *positions;

	int64_t chunk_tokens;           /* 0: rows see all chunks */
	const uint32_t *prefix_lengths; /* [batch], host memory, or NULL */
	struct fa_attention_pattern pattern;
};

/*
 * Rotary embedding of elements [first, first + dim) of each head: with a = position * scale *
 * base^(-2i / dim), elements x (first + i) and y (first + i + dim / 2; interleaved: first + 2i and
 * first + 2i + 1) become x cos a - y sin a and y cos a + x sin a, computed in fp32 and rounded once.
 */
struct fa_paged_rotary {
	int32_t dim;   /* even; 0: no rotation */
	int32_t first; /* a multiple of 8; first + dim is at most head_dim */
	bool interleaved;
	double base, scale;
	/* Instead of base and scale: both [table_positions][dim / 2], or both NULL. */
	const float *cos, *sin;
	/* Kernels clamp larger positions, so as not to read past the tables; callers refuse them. */
	uint32_t table_positions;
	/* [new token], or NULL: new token i is at length - n_new + i. */
	const uint32_t *positions;
};

/* Writes the new tokens' K (rotated) and V into the pages, and q (rotated) to q_out, which may be
 * q. FA_PAGED_READ is the reverse: it copies tokens [lengths_before, lengths) from the pages to k
 * and v. */
struct fa_paged_append {
	const struct fa_paged_cache *cache;
	const struct fa_paged_step *step;
	int32_t layer;
	struct fa_attention_tensor k, v; /* [new token][kv_head][dim]; data NULL: not written */
	int32_t heads;                   /* of q; 0: no q */
	struct fa_attention_tensor q, q_out;
	struct fa_paged_rotary rotary; /* unused by FA_PAGED_READ */
};

struct fa_paged_partial {
	struct fa_attention_tensor out; /* [token][head][dim] */
	float *lse;
	int64_t lse_stride_token, lse_stride_head;
};

/* Merges two results over disjoint sets of keys into the result over both. A result with lse -inf
 * (or +inf, which other libraries write) saw no key, and its out is not read; two of them give
 * zeros and -inf. @result may be @a or @b; its lse may be NULL. */
struct fa_paged_merge {
	enum fa_attention_dtype dtype;
	int64_t tokens;
	int32_t heads, head_dim_v;
	struct fa_paged_partial a, b, result;
};

/* FA_PAGED_COPY: copies page from[i] to page to[i], all layers; no page is in both arrays, or twice
 * in @to. FA_PAGED_CLEAR: fills pages to[] with zeros. */
struct fa_paged_pages {
	const struct fa_paged_cache *cache;
	int32_t count;
	const uint32_t *from, *to; /* [count], slots */
};

/* Moves tokens within sequence b, in all layers: token from[i] becomes token to[b] + i -
 * cu_moves[b], for i from cu_moves[b] to cu_moves[b + 1]. from is ascending, and no token moves
 * towards the end. Keeps one path of a tree. */
struct fa_paged_move {
	const struct fa_paged_cache *cache;
	int32_t batch;
	const uint32_t *cu_moves;            /* [batch + 1] */
	const uint32_t *from;                /* [cu_moves[batch]] */
	const uint32_t *to;                  /* [batch] */
	const uint32_t *table, *table_start; /* as in a step */
	uint32_t table_entries;
};

/*
 * Pages that a client manages: k [page][token][kv_head][head_dim] and v [..][head_dim_v], where
 * stride_batch is the stride between pages. Rows are contiguous; all other strides are free, so K
 * and V may alternate in one tensor, and heads may come before tokens. Fast kernels want page_tokens
 * to be a multiple of 16, and rows that are 16-byte aligned; all others are correct, too.
 *
 * With FA_PAGED_E4M3, k and v hold codes of one byte, and strides count bytes. An element is
 * code * scale, with one scale per KV head; appended rows are quantised with it. FA_PAGED_INT8 is
 * not supported.
 */
struct fa_paged_own {
	enum fa_attention_dtype dtype; /* of inputs, outputs and arithmetic */
	int32_t kv_heads, head_dim, head_dim_v;
	int32_t page_tokens; /* 1 to FA_PAGED_PAGE_TOKENS_MAX */
	int32_t pages;       /* at least 1 */
	enum fa_paged_store store;
	struct fa_attention_tensor k, v;
	/* [kv_head], in memory of the device; NULL: 1. Unused by FA_PAGED_PLAIN. */
	const float *k_scales, *v_scales;
};

/*
 * out = attention(q, K, V) over a client's pages, exactly as kernels/attention.h defines it for each
 * sequence: n_q is its number of rows, n_k its length, so the last row is aligned with the last key.
 *
 * table, lengths and cu_q are in memory of the device, and the client may write them at any time,
 * also while a kernel runs. Whatever they hold, kernels
 *   - read nothing of k and v but the pages [0, pages),
 *   - write nothing but rows [0, total_q) of out and lse,
 *   - end after work that is bounded by batch, max_q, total_q and max_k.
 * A kernel therefore reads a length and a cu_q once, and uses that copy for all that follows. It
 * clamps what it reads:
 *   - the length of sequence b is lengths[b], at least 0, at most max_k and at most
 *     table_columns * page_tokens;
 *   - its rows begin at cu_q[b], at least 0, at most total_q; their number is cu_q[b + 1] minus
 *     this beginning, at least 0, at most max_q, and at most the rows from there to total_q;
 *   - page p of the table is page min((uint32_t)p, pages - 1).
 * Rows that no sequence claims are not written. Rows that several claim hold any mix of the results
 * and of what was there before. If all sequences together claim more than total_q rows, this is so
 * for all rows.
 *
 * Token j of sequence b is token j % page_tokens of page table[b * table_stride + j / page_tokens].
 * Entries of pages without a token below the length, or wholly before every row's window or chunk,
 * are not followed. Tokens from the length on have no effect, even if they are NaN.
 */
struct fa_paged_own_attention {
	const struct fa_paged_own *pages;
	int32_t batch, heads; /* heads: a multiple of kv_heads */
	const int32_t *table; /* [batch][table_columns] */
	int32_t table_columns;
	int64_t table_stride;
	const int32_t *lengths; /* [batch], in tokens; new tokens are included */
	/* [batch + 1]; NULL: each sequence has max_q rows, and total_q is batch * max_q. */
	const int32_t *cu_q;
	int32_t max_q;                     /* rows of a sequence */
	int64_t total_q;                   /* rows of q and out */
	int32_t max_k;                     /* tokens of a sequence */
	struct fa_attention_tensor q, out; /* [row][head][dim]; no stride_batch */
	float *lse;                        /* may be NULL */
	int64_t lse_stride_token, lse_stride_head;
	float scale;
	float softcap; /* 0: none */
	bool causal;
	int64_t window_left, window_right; /* -1: unbounded */
	const float *alibi_slopes;         /* [heads] or NULL */
	const float *sinks;                /* [heads] or NULL */
	bool deterministic;                /* as in fa_paged_attention */
	int64_t chunk_tokens;              /* 0: rows see all chunks */
	/* [batch], in memory of the device, or NULL; read once for each sequence and request. One
	 * below 0 counts as 0. */
	const int32_t *prefix_lengths;
	struct fa_attention_pattern pattern;
};

/*
 * Writes row i of k and v to slots[i] of a client's pages: token slots[i] % page_tokens of page
 * slots[i] / page_tokens. A row whose slot is negative, or not below pages * page_tokens, is not
 * written. A token that several rows name holds one of them, or a mix. slots is in memory of the
 * device, and the client may write it at any time.
 */
struct fa_paged_own_append {
	const struct fa_paged_own *pages;
	int64_t tokens;
	struct fa_attention_tensor k, v; /* [token][kv_head][dim]; data NULL: not written */
	const int64_t *slots;            /* [tokens] */
};

/*
 * FA_PAGED_READ_OWN copies tokens [lengths_before[0], lengths[0]) of a step of one sequence, in
 * layers [layer, layer + n_layers), from the pool to a client's pages; FA_PAGED_WRITE_OWN is the
 * reverse. Elements are of the cache's dtype outside the pool, and with codes they are quantised
 * and dequantised as by FA_PAGED_APPEND and FA_PAGED_READ.
 *
 * In the client's tensors, token lengths_before[0] + i lies at place p = offset + i: it is token
 * p % page_tokens of page pages[p / page_tokens]. Only K's and V's strides are used, of all layers;
 * where layer + i begins is in k_data[i] and v_data[i]. Rows are contiguous. A read writes no page
 * twice, and its tensors share no memory.
 */
struct fa_paged_own_copy {
	const struct fa_paged_cache *cache;
	const struct fa_paged_step *step;
	int32_t layer, n_layers;
	struct fa_attention_tensor k, v; /* [page][token][kv_head][dim]; stride_batch: the page's */
	/* [n_layers], host memory with the device's addresses; NULL: not copied. V is not written
	 * where it is the front of K. */
	void *const *k_data, *const *v_data;
	int32_t page_tokens; /* at least 1 */
	uint32_t offset;
	const uint32_t *pages; /* [n_pages], host memory */
	uint32_t n_pages;
};

enum fa_paged_op {
	FA_PAGED_ATTEND,
	FA_PAGED_APPEND,
	FA_PAGED_READ,
	FA_PAGED_MERGE,
	FA_PAGED_COPY,
	FA_PAGED_CLEAR,
	FA_PAGED_MOVE,
	FA_PAGED_ATTEND_OWN,
	FA_PAGED_APPEND_OWN,
	FA_PAGED_READ_OWN,
	FA_PAGED_WRITE_OWN,
};

struct fa_paged_request {
	enum fa_paged_op op;
	union {
		struct fa_paged_attention attention;
		struct fa_paged_append append; /* and read */
		struct fa_paged_merge merge;
		struct fa_paged_pages pages;
		struct fa_paged_move move;
		struct fa_paged_own_attention own_attention;
		struct fa_paged_own_append own_append;
		struct fa_paged_own_copy own_copy; /* read and write */
	};
};

/* Returns 0 if a kernel covers @request, else -ENOTSUP or -EINVAL with a sentence in @text. Reads
 * the arrays in host memory, and no other. Does not check pointers, strides and slots: the caller
 * must know that they are in bounds. */
int fa_paged_check(const struct fa_paged_request *request, char *text, size_t text_bytes);

/* Checks a cache alone in the same way; does not read its pool and scales. */
int fa_paged_check_cache(const struct fa_paged_cache *cache, char *text, size_t text_bytes);

/* Returns the bytes of a page's K and V in one layer, with the tokens' scales. V has 0 where it is
 * the front of K. */
void fa_paged_page_bytes(const struct fa_paged_cache *cache, int64_t *ret_k_bytes,
                         int64_t *ret_v_bytes);

/* Computes the positions of the new tokens, [cu_new[batch]]. A token of a tree follows the last old
 * token at a distance of the new tokens that it sees before itself; any other is at its index.
 * @tree and @tree_start are as in fa_paged_attention, or NULL, but @tree is host memory here. */
void fa_paged_tree_positions(const struct fa_paged_step *step, const uint32_t *tree,
                             const uint32_t *tree_start, uint32_t *ret_positions);

/* ---- CPU kernels. Pure functions but for *workspace, any thread; @isa never changes.
 *
 * As with fa_cpu_attention_*: running every tile 0…n-1 once, in any order, on any threads,
 * completes a checked request; results are the same to the bit, also whatever else is in
 * the batch (over a client's pages only if the request is deterministic). Before the first tile
 * fa_cpu_paged_begin() is called once, with a workspace of the request's own, 64-byte aligned, that
 * lives until the last tile has ended. */

/* Returns the size of a thread's scratch, at most FA_CPU_SCRATCH_BYTES_MAX. */
size_t fa_cpu_paged_scratch_bytes(const struct fa_cpu_isa *isa,
                                  const struct fa_paged_request *request);
/* Returns the size of the workspace; 0: none is needed. */
size_t fa_cpu_paged_workspace_bytes(const struct fa_cpu_isa *isa,
                                    const struct fa_paged_request *request);
/* Returns the number of tiles. Of FA_PAGED_ATTEND_OWN it reads lengths and cu_q, and no tile reads
 * them again. */
int64_t fa_cpu_paged_begin(const struct fa_cpu_isa *isa, const struct fa_paged_request *request,
                           void *workspace);
/* Computes one tile. Returns false if *@stop was set and the tile given up; the request then has no
 * result. */
bool fa_cpu_paged_tile(const struct fa_cpu_isa *isa, const struct fa_paged_request *request,
                       void *workspace, int64_t tile, void *scratch, const bool *stop);
