/* Which tiles of keys a block of rows sees, and which one warpgroup's rows see. */
#pragma once

#include "kernels/cuda/common/work.h"

#include <stdint.h>

/* Tiles of keys, processed from the last to the first; with FIRST_TILE_FIRST the first before
 * them. */
struct fa_sm90_tile_range {
	int32_t last, count;
};

/* Returns the number of the tile at which @left tiles are left, itself included. */
template <class C>
__device__ __forceinline__ int32_t fa_sm90_tile_at(const struct fa_sm90_tile_range &range,
                                                   int32_t left)
{
	const int32_t first = range.last - range.count + 1;

	if (C::FIRST_TILE_FIRST)
		return left == range.count ? first : first + left;
	return first + left - 1;
}

template <class C, class WORK>
__device__ __forceinline__ struct fa_sm90_tile_range
fa_sm90_tile_range_of(const struct fa_cuda_attention &args, const WORK &work, int32_t row,
                      int32_t rows)
{
	int32_t begin = C::SOURCE::first_key(work), end = work.n_k;

	if (C::BAND) {
		const int32_t last_row = min(row + rows, work.n_q) - 1;

		begin = max(begin, row + work.diagonal - args.window_left);
		end = min(end, last_row + work.diagonal + args.window_right + 1);
	}
	if (end <= begin)
		return { 0, 0 };
	return { (end - 1) / C::KEYS, (end - 1) / C::KEYS - begin / C::KEYS + 1 };
}

template <class C, class WORK>
__device__ __forceinline__ struct fa_sm90_tile_range
fa_sm90_tile_range_get(const struct fa_cuda_attention &args, const WORK &work)
{
	if constexpr (C::PACKED)
		return { work.last, work.count };
	else
		return fa_sm90_tile_range_of<C>(args, work, work.row, C::ROWS);
}

/* A group's tiles, and the block's that it skips before and after them. */
struct fa_sm90_group_range {
	struct fa_sm90_tile_range tiles;
	int32_t before, after;
};

/* @tiles: the block's. If it has any, every group has one, and sees the block's end. */
template <class C, class WORK>
__device__ __forceinline__ struct fa_sm90_group_range
fa_sm90_group_range_get(const struct fa_cuda_attention &args, const WORK &work,
                        const struct fa_sm90_tile_range &tiles, int32_t row)
{
	struct fa_sm90_group_range range = { tiles, 0, 0 };

	if (C::WINDOW && C::SKIPS && tiles.count > 0) {
		int32_t last = tiles.last, count = 0;

		/* All take as many tiles as the group that sees most. */
#pragma unroll
		for (int group = 0; group < C::GROUPS; group++) {
			const int32_t first = work.row + group * C::GROUP_ROWS;
			struct fa_sm90_tile_range seen = { tiles.last, 0 };

			if (first < work.n_q)
				seen = fa_sm90_tile_range_of<C>(args, work, first, C::GROUP_ROWS);
			count = max(count, seen.count);
			if (first == row && seen.count > 0)
				last = seen.last;
		}
		range.before = min(tiles.last - last, tiles.count - count);
		range.after = tiles.count - count - range.before;
		range.tiles = { tiles.last - range.before, count };
	}
	if (C::INDEPENDENT && tiles.count > 0) {
		range.tiles = row < work.n_q
		                      ? fa_sm90_tile_range_of<C>(args, work, row, C::GROUP_ROWS)
		                      : fa_sm90_tile_range{ 0, 0 };
		if (range.tiles.count == 0)
			range.tiles = { tiles.last, 1 };
		range.before = tiles.last - range.tiles.last;
		range.after = tiles.count - range.before - range.tiles.count;
	}
	return range;
}

/* The tiles of @group in the block at @row. INDEPENDENT groups reverse their order every other
 * block, so that over two causal blocks all see equally many keys. */
template <class C>
__device__ __forceinline__ int32_t fa_sm90_group_row(int32_t row, uint32_t group, bool reversed)
{
	const uint32_t place = C::INDEPENDENT && reversed ? C::GROUPS - 1 - group : group;

	return row + (int32_t)place * C::GROUP_ROWS;
}
