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

/* Returns sequence @b's item; tile, tiles, parts and row_blocks are not set. */
__device__ __forceinline__ struct fa_cuda_paged_item fa_own_item(const struct fa_cuda_own_plan &p,
                                                                 uint32_t b)
{
	const int64_t length = *(const volatile int32_t *)(p.lengths + b);
	int64_t begin = (int64_t)b * p.max_q, n = p.max_q, from;
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
	from = (int64_t)item.n_k - n - p.window_left;
	item.begin = from > 0 ? (uint32_t)(from < item.n_k ? from : item.n_k) : 0;
	item.table_start = b * p.table_stride;
	item.tree_start = FA_CUDA_PAGED_NO_TREE;
	item.append = item.n_k;
	return item;
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
