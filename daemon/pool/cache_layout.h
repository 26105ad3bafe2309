/*
 * Where a cache's pages lie. Pure arithmetic; any thread.
 *
 * Kernels know a page by its *slot*, a uint32: the offset of its K of layer 0 from the pool's
 * start, in units of 256 bytes. One table serves all layers:
 *
 *     K of layer l  =  pool + slot * 256 + l * layer_stride_bytes
 *     V of layer l  =  K + v_offset_bytes
 *
 * K is [kv_head][page_tokens][head_dim], V is [kv_head][page_tokens][head_dim_v], both contiguous.
 * With token_scales each is followed by its scales, [kv_head][page_tokens]. With v_in_k,
 * v_offset_bytes is 0 and a row of V has the stride of K: head_dim.
 *
 * A layer-major chunk is [layer][K of all pages][V of all pages], or, if K and V differ in size,
 * [layer][page][K, V]. A page-major chunk is [page][layer][K, V].
 */
#pragma once

#include "common/error.h"
#include "kernels/paged.h"

#include <stdbool.h>
#include <stdint.h>

#define FA_SLOT_BYTES 256u

#define FA_CACHE_LAYERS_MAX 1024u
#define FA_CACHE_KV_HEADS_MAX 1024u
#define FA_CACHE_HEAD_DIM_MAX ((uint32_t)FA_ATTENTION_HEAD_DIM_MAX)
#define FA_CACHE_HEAD_DIM_V_MAX ((uint32_t)FA_ATTENTION_HEAD_DIM_V_MAX)
#define FA_CACHE_PAGE_TOKENS_MIN 16u
#define FA_CACHE_PAGE_TOKENS_MAX 256u

enum fa_cache_order {
	FA_CACHE_LAYER_MAJOR,
	FA_CACHE_PAGE_MAJOR,
};

struct fa_cache_geometry {
	uint32_t layers, kv_heads;
	uint32_t head_dim, head_dim_v;
	enum fa_attention_dtype dtype;
	uint32_t page_tokens; /* a power of two */
	bool v_in_k;          /* V is the first head_dim_v elements of each row of K */
	enum fa_cache_order order;
	enum fa_paged_store store;
	bool token_scales; /* codes are scaled by token and head; else by head */
};

struct fa_cache_layout {
	uint64_t layer_stride_bytes;
	uint64_t v_offset_bytes;
	uint64_t page_stride_bytes; /* between pages of a chunk */
	/* of a page in one layer, padded; v_bytes is 0 with v_in_k */
	uint64_t k_bytes, v_bytes;
	/* of a page in all layers; what tenants pay for */
	uint64_t page_bytes;
	uint32_t pages_per_chunk;
	uint32_t page_slots; /* page_stride_bytes / FA_SLOT_BYTES */
	uint32_t page_tokens;
	uint32_t token_shift;     /* log2 of page_tokens */
	uint64_t page_reciprocal; /* 2^39 / page_slots, rounded up */
};

/*
 * @chunk_bytes: a power of two. @max_pages: most pages in a chunk. -EINVAL; -ENOTSUP: no kernel.
 */
int fa_cache_layout_init(const struct fa_cache_geometry *geometry, uint64_t chunk_bytes,
                         uint32_t max_pages, struct fa_error *error,
                         struct fa_cache_layout *ret_layout);

static inline uint64_t fa_cache_state_room(uint32_t bytes)
{
	return ((uint64_t)bytes + FA_SLOT_BYTES - 1) / FA_SLOT_BYTES * FA_SLOT_BYTES;
}

/*
 * A checkpoint's bytes fill the pages at @slots span by span: a page has page_bytes /
 * page_stride_bytes spans of page_stride_bytes each (in each layer K, V, or both), and the first
 * span of all pages comes before the second.
 *
 * Returns where byte @at lies in the pool, and in *@ret_bytes how many of the @bytes from there on
 * follow without a gap.
 */
uint64_t fa_cache_checkpoint_find(const struct fa_cache_layout *layout, const uint32_t *slots,
                                  uint32_t n_slots, uint64_t at, uint64_t bytes,
                                  uint64_t *ret_bytes);

static inline uint32_t fa_cache_page_place(const struct fa_cache_layout *layout, uint32_t slots)
{
	return (uint32_t)(slots * layout->page_reciprocal >> 39);
}
