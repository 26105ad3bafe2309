/*
 * The segments of a thread block in a decode launch (terms: paged-args.h).
 */
#pragma once

#include "kernels/cuda/common/own.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/memory.h"

#include <stdint.h>

template <bool SPLIT_ITEMS> struct fa_paged_segment_split {
};

template <> struct fa_paged_segment_split<true> {
	struct fa_cuda_paged_split split;
	uint32_t behind; /* splits of the part up to the segment's end */
	uint32_t place;  /* of the segment's partial result */
	bool again;      /* same part as the previous segment */
};

/* A block's current segment, in all its threads. With fixed splits a segment is one split.
 * PRECOMPUTED: has the KV head and row block instead of dividing for them. */
template <bool SPLIT_ITEMS, bool PRECOMPUTED, int OWN>
struct fa_paged_segment : fa_paged_segment_split<SPLIT_ITEMS> {
	uint32_t index, part; /* index: the item's; part: within the item */
	uint32_t left;
	int32_t begin, end;
	bool whole;    /* it is the whole part: the result is final */
	bool first;    /* the first of the block's range */
	uint32_t tile; /* the part's first, over all items */
	/* Set if PRECOMPUTED, which saves divisions and their code. */
	uint32_t head, row_block;
	struct fa_cuda_paged_item item;

	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args)
	{
		if constexpr (SPLIT_ITEMS) {
			const uint4 words = *(const uint4 *)(args.splits + index);

			this->split.split_tiles = words.x;
			this->split.parts = words.y;
			this->split.suffixes = words.z;
			this->split.n_suffixes = words.w;
		}
		/* Inline items arrive with the launch, before memory. */
		if (args.inline_items > 0) {
			item = args.first_items[index];
			return;
		}

		const uint4 *words = (const uint4 *)(fa_own_items<OWN>(args) + index);
		const uint4 a = words[0], b = words[1], c = words[2];

		item.tile = a.x;
		item.tiles = a.y;
		item.parts = a.z;
		item.row_blocks = a.w;
		item.first_q = b.x;
		item.n_q = b.y;
		item.n_k = b.z;
		item.begin = b.w;
		item.first = c.x;
		item.table_start = c.y;
		item.tree_start = c.z;
		item.append = c.w;
	}

	__device__ __forceinline__ void enter(const struct fa_cuda_paged_attention &args,
	                                      uint32_t tile_in_part)
	{
		if constexpr (SPLIT_ITEMS)
			enter_split(args, tile_in_part);
		else
			enter_tiles(args, tile_in_part, min(item.tiles - tile_in_part, left),
			            fa_own_tile_size<OWN>(args));
	}

	__device__ __forceinline__ void enter_split(const struct fa_cuda_paged_attention &args,
	                                            uint32_t tile_in_part)
	{
		const uint32_t split_tiles = this->split.split_tiles;
		const uint32_t n = split_tiles ? 1 : min(item.tiles - tile_in_part, left);

		enter_tiles(args, tile_in_part, n, split_tiles ? split_tiles : 1);
		whole = whole && this->split.suffixes == FA_CUDA_PAGED_NO_SUFFIX;
		this->behind = tile_in_part + n;
		this->again = false;
		this->place = split_tiles ? tile + tile_in_part
		                          : this->split.parts + part + blockIdx.x;
	}

	__device__ __forceinline__ void enter_tiles(const struct fa_cuda_paged_attention &args,
	                                            uint32_t tile_in_part, uint32_t n,
	                                            uint32_t split_tiles)
	{
		const int32_t origin = item.begin & ~(FA_CUDA_PAGED_STRIP - 1);
		const int32_t from = max((int32_t)(tile_in_part - args.epilogue_tiles), 0);
		const int32_t to = (int32_t)(tile_in_part + n - args.epilogue_tiles);

		left -= n;
		tile = item.tile + part * item.tiles;

		if constexpr (PRECOMPUTED) {
			head = item.row_blocks == 1 ? part : part / item.row_blocks;
			row_block = part - head * item.row_blocks;
		}
		begin = origin + from * (int32_t)split_tiles * FA_CUDA_PAGED_TILE;
		/* Pages of strips without a token may not exist. */
		end = item.begin < item.n_k
		              ? min((int32_t)item.n_k,
		                    origin + to * (int32_t)split_tiles * FA_CUDA_PAGED_TILE)
		              : begin;
		whole = from == 0 && tile_in_part + n == item.tiles;
	}

	/* The item of tile @at among SEARCHED at most; all loads are issued at once. A whole
	 * warp. */
	static constexpr int SEARCHED = 128;

	__device__ __forceinline__ uint32_t search(const struct fa_cuda_paged_attention &args,
	                                           uint32_t at) const
	{
		uint32_t tiles[SEARCHED / 32], n = 0;

#pragma unroll
		for (int i = 0; i < SEARCHED / 32; i++) {
			const uint32_t by = 32 * i + threadIdx.x % 32;

			tiles[i] = by < args.n_items ? fa_own_items<OWN>(args)[by].tile
			                             : UINT32_MAX;
		}
#pragma unroll
		for (int i = 0; i < SEARCHED / 32; i++)
			n += __popc(__ballot_sync(~0u, tiles[i] <= at));
		/* Tells the compiler that the result is uniform. */
		return __shfl_sync(~0u, n - 1, 0);
	}

	/* The same among inline items. */
	__device__ __forceinline__ uint32_t
	search_inline(const struct fa_cuda_paged_attention &args, uint32_t at) const
	{
		uint32_t n = 0;

#pragma unroll
		for (int i = 1; i < FA_CUDA_PAGED_INLINE_ITEMS; i++)
			n += args.first_tiles[i] <= at;
		return n;
	}

	__device__ __forceinline__ void start(const struct fa_cuda_paged_attention &args,
	                                      uint32_t block)
	{
		const struct fa_paged_ranges ranges = fa_paged_ranges_of<OWN>(args);
		const uint32_t at = ranges.first_tile(block);
		uint32_t in_item;

		if (args.inline_items > 0) {
			index = args.inline_items == 1 ? 0 : search_inline(args, at);
		} else if (PRECOMPUTED && args.n_items <= SEARCHED) {
			index = search(args, at);
		} else {
			index = args.block_items[block];
		}
		left = ranges.each + (block < ranges.extra);
		load(args);
		in_item = at - item.tile;
		part = in_item / item.tiles;
		first = true;
		enter(args, in_item - part * item.tiles);
	}

	__device__ __forceinline__ bool next(const struct fa_cuda_paged_attention &args)
	{
		if (left <= args.epilogue_tiles)
			return false;
		if constexpr (SPLIT_ITEMS) {
			if (this->behind < item.tiles) {
				enter(args, this->behind);
				this->again = true;
				return true;
			}
		}
		if (++part == item.parts) {
			part = 0;
			index++;
			load(args);
		}
		first = false;
		enter(args, 0);
		return true;
	}

	__device__ __forceinline__ uint32_t slice(const struct fa_cuda_paged_attention &args) const
	{
		return PRECOMPUTED || args.slices == 1 ? 0 : part % args.slices;
	}

	__device__ __forceinline__ uint32_t
	kv_head(const struct fa_cuda_paged_attention &args) const
	{
		if constexpr (PRECOMPUTED)
			return head;
		else
			return part / args.slices / item.row_blocks;
	}

	__device__ __forceinline__ uint32_t rows(const struct fa_cuda_paged_attention &args,
	                                         uint32_t most) const
	{
		return min(most, item.n_q * args.attention.group - row(args, most));
	}

	/* Returns the segment's first row, among the item's rows of one KV head. */
	__device__ __forceinline__ uint32_t row(const struct fa_cuda_paged_attention &args,
	                                        uint32_t rows) const
	{
		if constexpr (PRECOMPUTED)
			return row_block * rows;
		else
			return part / args.slices % item.row_blocks * rows;
	}
};

template <class C>
using fa_paged_segment_of = struct fa_paged_segment<C::SPLIT_ITEMS, C::PRECOMPUTED, C::OWN>;

__device__ __forceinline__ uint32_t fa_paged_block_of(const struct fa_paged_ranges &ranges,
                                                      uint32_t tile)
{
	const uint32_t larger = ranges.extra * (ranges.each + 1);

	return tile < larger ? tile / (ranges.each + 1)
	                     : ranges.extra + (tile - larger) / ranges.each;
}
