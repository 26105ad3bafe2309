/*
 * The items that a client's lengths and cu_q describe (struct fa_cuda_own_plan). Also the plan of
 * few sequences, which each block of decode makes for itself. If a client changes its lengths
 * meanwhile, blocks' plans differ and results are wrong; but all warps of a block share its plan,
 * each block writes rows of out alone, and none waits for long (sm90/paged_reduce.h).
 */
#pragma once

#include "kernels/cuda/common/own.h"
#include "kernels/cuda/common/paged-args.h"

#include <stdint.h>

/* Sets the first key of an item that rows may see. */
__device__ __forceinline__ void fa_own_set_begin(const struct fa_cuda_own_plan &p,
                                                 struct fa_cuda_paged_item &item)
{
	const int64_t from = (int64_t)item.n_k - item.n_q - p.window_left;
	const uint32_t seen = from > 0 ? (uint32_t)(from < item.n_k ? from : item.n_k) : 0;

	item.begin = seen > item.first ? seen : item.first;
}

/* Returns sequence @b's item; tile, tiles, parts and row_blocks are not set. */
__device__ __forceinline__ struct fa_cuda_paged_item fa_own_item(const struct fa_cuda_own_plan &p,
                                                                 uint32_t b)
{
	const int64_t length = *(const volatile int32_t *)(p.lengths + b);
	int64_t begin = (int64_t)b * p.max_q, n = p.max_q;
	struct fa_cuda_paged_item item = {};

	if (p.cu_q) {
		begin = *(const volatile int32_t *)(p.cu_q + b);
		begin = begin < 0 ? 0 : begin > p.total_q ? p.total_q : begin;
		n = *(const volatile int32_t *)(p.cu_q + b + 1) - begin;
		n = n < 0 ? 0 : n > p.max_q ? p.max_q : n;
	}
	n = n > p.total_q - begin ? p.total_q - begin : n;
	item.first_q = (uint32_t)begin;
	item.n_q = (uint32_t)n;
	item.n_k = (uint32_t)(length < 0 ? 0 : length > p.max_k ? p.max_k : length);
	fa_own_set_begin(p, item);
	item.table_start = b * p.table_stride;
	item.tree_start = FA_CUDA_PAGED_NO_TREE;
	item.append = item.n_k;
	return item;
}

/* Returns the part of a sequence's item that begins with row @row: as many rows as are in one chunk
 * and, of many rows (@forward), on one side of the end of the prefix. @prefix: its tokens. With
 * part_tokens, rows see no key behind themselves. */
__device__ __forceinline__ struct fa_cuda_paged_item
fa_own_part(const struct fa_cuda_own_plan &p, const struct fa_cuda_paged_item &of, uint32_t row,
            uint32_t prefix, bool forward)
{
	const int64_t at = (int64_t)of.n_k - of.n_q + row;
	struct fa_cuda_paged_item part = of;
	int64_t end = of.n_k;
	bool in_prefix;

	if (p.chunk > 0) {
		/* Rows before the first key are in chunks without keys. */
		part.first = at < 0 ? 0 : (uint32_t)at / p.chunk * p.chunk;
		end = at < 0 ? 0 : (int64_t)part.first + p.chunk;
		end = end < of.n_k ? end : of.n_k;
	}
	prefix = prefix < end ? prefix : (uint32_t)end;
	in_prefix = forward && prefix > 0 && (int64_t)prefix > at;
	if (in_prefix)
		end = prefix;
	if (!forward && p.part_tokens > 0 && end > at + p.part_tokens)
		end = at + p.part_tokens;
	part.first_q = of.first_q + row;
	part.n_q = (uint32_t)(end - at);
	part.n_k = end > 0 ? (uint32_t)end : 0;
	if (!forward)
		part.append = prefix;
	else
		/* All rows of a prefix see all of it, as if they were behind its last token. */
		part.append = in_prefix ? prefix - 1 + part.n_q : part.n_k;
	fa_own_set_begin(p, part);
	return part;
}

/* Sets the parts and tiles of an item with rows; tile is not set. */
__device__ __forceinline__ void fa_own_divide_item(const struct fa_cuda_own_plan &p,
                                                   struct fa_cuda_paged_item &item)
{
	const uint32_t keys = item.n_k - item.begin / FA_CUDA_PAGED_STRIP * FA_CUDA_PAGED_STRIP;

	item.row_blocks = (uint32_t)(((uint64_t)item.n_q * p.group + p.rows - 1) / p.rows);
	item.parts = p.parts * item.row_blocks;
	item.tiles = p.whole || item.begin == item.n_k
	                     ? 1
	                     : (keys + FA_CUDA_PAGED_TILE - 1) / FA_CUDA_PAGED_TILE;
}

__device__ __forceinline__ struct fa_cuda_own_ranges
fa_own_ranges_of(const struct fa_cuda_own_plan &p, uint32_t tiles, uint32_t items)
{
	struct fa_cuda_own_ranges ranges = { 0, 0, 0, 0 };
	uint64_t most = (uint64_t)items * p.parts * p.part_blocks;

	if (items > 0) {
		most = most < p.blocks ? most : p.blocks;
		ranges.tiles_each = (uint32_t)((tiles + most - 1) / most);
		ranges.blocks = (tiles + ranges.tiles_each - 1) / ranges.tiles_each;
		ranges.tiles_each = tiles / ranges.blocks;
		ranges.tiles_extra = tiles % ranges.blocks;
	}
	return ranges;
}

/* Plans in shared memory. All threads of a block of at least FA_CUDA_OWN_SHARED_ITEMS. */
__device__ __forceinline__ void fa_own_plan_in_shared(const struct fa_cuda_paged_attention &args)
{
	const struct fa_cuda_own_plan &p = fa_own_of(args).plan;
	struct fa_cuda_own_shared_plan *const plan = fa_own_shared_plan(args);
	const uint32_t t = threadIdx.x, warp = t / 32, lane = t % 32;
	struct fa_cuda_paged_item item = {};
	uint64_t tiles = 0, before = 0;
	uint32_t index = 0;

	static_assert(FA_CUDA_OWN_SHARED_ITEMS == 128, "four warps, as segments search for items");
	if (t < FA_CUDA_OWN_SHARED_ITEMS) {
		if (t < (uint32_t)p.batch)
			item = fa_own_item(p, t);
		if (item.n_q >= p.forward_from)
			item.n_q = 0;
		if (item.n_q > 0) {
			/* The sequence is one part. */
			item = fa_own_part(p, item, 0, 0, false);
			fa_own_divide_item(p, item);
			tiles = (uint64_t)item.parts * item.tiles;
		}

		const uint32_t with_rows = __ballot_sync(~0u, item.n_q > 0);

		index = __popc(with_rows & ((1u << lane) - 1));
		before = tiles;
#pragma unroll
		for (uint32_t apart = 1; apart < 32; apart *= 2) {
			const uint64_t other = __shfl_sync(~0u, before, lane - apart);

			before += lane >= apart ? other : 0;
		}
		if (lane == 31) {
			plan->tiles[warp] = before;
			plan->n[warp] = __popc(with_rows);
		}
		before -= tiles;
		plan->items[t].tile = UINT32_MAX;
	}
	__syncthreads(); /* the warps' sums are written, and items cleared */
	if (t < FA_CUDA_OWN_SHARED_ITEMS) {
		uint64_t all = 0;
		uint32_t n = 0;

#pragma unroll
		for (uint32_t w = 0; w < FA_CUDA_OWN_SHARED_ITEMS / 32; w++) {
			before += w < warp ? plan->tiles[w] : 0;
			index += w < warp ? plan->n[w] : 0;
			all += plan->tiles[w];
			n += plan->n[w];
		}
		/* Sequences that claim the same rows may need more tiles: nothing is computed. */
		if (all > INT32_MAX)
			n = 0;
		item.tile = (uint32_t)before;
		if (n > 0 && item.n_q > 0)
			plan->items[index] = item;
		if (t == 0)
			plan->ranges = fa_own_ranges_of(p, (uint32_t)all, n);
	}
	__syncthreads(); /* the plan is written */
}
