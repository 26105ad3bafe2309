/*
 * The producer of kernels with masks (masked_source.h): warp 1 reads the lists of the next block of
 * rows while warp 0 loads the tiles of this one.
 *
 * Warp 1 gives each block of rows a bit for each group and unit of keys: whether some row of the
 * group may see the unit. Units are the list's key blocks or, without lists, halves. With a pattern,
 * granules of 16 keys get bits, too. Bits lie in one of two places in shared memory, in turns.
 */
#pragma once

#include "kernels/cuda/common/mask-list.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/sm90/load.h"
#include "kernels/cuda/sm90/masked_source.h"

#include <stdint.h>

/* A block's range of keys, in units. */
template <class C> struct fa_sm90_units {
	int32_t keys, first, last;

	__device__ __forceinline__ fa_sm90_units(const struct fa_cuda_masked_attention &args,
	                                         const struct fa_work &work)
	{
		const int32_t last_row = min(work.row + C::ROWS, work.n_q) - 1;

		keys = args.mask.block_rows ? args.mask.block_keys : FA_SM90_HALF_KEYS;
		first = max(0, work.row + work.diagonal - args.attention.window_left) / keys;
		last = (min(work.n_k, last_row + work.diagonal + args.attention.window_right + 1) -
		        1) /
		       keys;
	}
};

/* Where the bits of a block of rows lie. */
template <class C>
__device__ __forceinline__ uint32_t *fa_sm90_list_words(uint32_t slot, uint32_t which)
{
	extern __shared__ __align__(1024) char shared_memory[];

	return (uint32_t *)(shared_memory + C::LISTS_AT) + (slot * 3 + which) * FA_CUDA_MASK_WORDS;
}

/* Removes units that the pattern hides from all rows of a group. A warp. */
template <class C>
__device__ __forceinline__ void fa_sm90_apply_pattern(const struct fa_cuda_masked_attention &args,
                                                      const struct fa_work &work,
                                                      const fa_sm90_units<C> &units, uint32_t slot)
{
	const struct fa_cuda_mask &mask = args.mask;
	uint32_t *const granules = fa_sm90_list_words<C>(slot, 2);
	const uint32_t shift = fa_sm90_pattern_shift(mask, work.head, args.attention.group);
	const int32_t lane = threadIdx.x % 32, per_unit = units.keys / 16;
	/* A unit's granules are in one word. */
	const uint32_t of_unit = (1u << per_unit) - 1;
	int32_t near[2];

#pragma unroll
	for (int g = 0; g < 2; g++)
		near[g] = fa_sm90_pattern_near(mask, work.row + g * C::GROUP_ROWS + work.diagonal,
		                               0);
#pragma unroll 1
	for (int32_t i = units.first * per_unit / 32;
	     i <= (units.last * per_unit + per_unit - 1) / 32; i++) {
		const uint32_t word = __ballot_sync(
			~0u, fa_sm90_pattern_strided(mask, shift, (i * 32 + lane) * 16));

		if (lane == 0)
			granules[i] = word;
	}
	__syncwarp();
#pragma unroll 1
	for (int32_t i = units.first / 32; i <= units.last / 32; i++) {
		const int32_t unit = min(i * 32 + lane, units.last);
		const bool strided = granules[unit * per_unit / 32] >> unit * per_unit % 32 &
		                     of_unit;

#pragma unroll
		for (int g = 0; g < 2; g++) {
			const uint32_t word = __ballot_sync(
				~0u, strided || unit * units.keys + units.keys > near[g]);

			if (lane == 0)
				fa_sm90_list_words<C>(slot, g)[i] &= word;
		}
	}
}

/* Writes the bits of a block of rows. A warp. */
template <class C>
__device__ __forceinline__ void fa_sm90_write_lists(const struct fa_cuda_masked_attention &args,
                                                    const struct fa_work &work, uint32_t slot)
{
	const struct fa_cuda_mask &mask = args.mask;
	const fa_sm90_units<C> units(args, work);
	uint32_t *const lists[2] = { fa_sm90_list_words<C>(slot, 0),
		                     fa_sm90_list_words<C>(slot, 1) };
	const int32_t lane = threadIdx.x % 32;
	const bool two = mask.block_rows == C::GROUP_ROWS;

	for (int32_t i = lane; i < FA_CUDA_MASK_WORDS; i += 32)
		lists[0][i] = lists[1][i] = mask.block_rows ? 0 : ~0u;
	__syncwarp();
	if (mask.block_rows) {
#pragma unroll 1
		for (int32_t row = work.row; row < min(work.row + (two ? C::ROWS : 1), work.n_q);
		     row += C::GROUP_ROWS)
			fa_masked_read_list(mask, work, row / mask.block_rows,
			                    row > work.row ? lists[1] : lists[0]);
		__syncwarp();
		if (!two)
			for (int32_t i = lane; i < FA_CUDA_MASK_WORDS; i += 32)
				lists[1][i] = lists[0][i];
		__syncwarp();
	}
	if (mask.pattern_tokens)
		fa_sm90_apply_pattern<C>(args, work, units, slot);
	__syncwarp();
}

/* Warp 1, all threads. */
template <class C>
__device__ __forceinline__ void fa_sm90_read_lists(const struct fa_cuda_masked_attention &args,
                                                   uint32_t shared)
{
	typename C::SOURCE::template PRODUCER_SCHEDULER<C> scheduler(args);
	const uint32_t done_before = fa_ld_shared(shared + C::RECORD + 4);
	typename C::SOURCE::BLOCK block;
	typename C::SOURCE::WORK work;
	struct fa_sm90_ring_position<2> slot;
	uint32_t begun = 0;

#pragma unroll 1
	while (scheduler.next(args, block, work)) {
		if (fa_sm90_tile_range_get<C>(args.attention, work).count == 0 ||
		    begun++ < done_before)
			continue;
		fa_mbarrier_wait(shared + C::LIST_EMPTY + 8 * slot.stage, slot.parity ^ 1);
		/* Lanes may read it at different times. */
		if (__any_sync(~0u, fa_ld_shared(shared + C::LISTS_END) != 0))
			return;
		fa_sm90_write_lists<C>(args, work, slot.stage);
		if (threadIdx.x % 32 == 0)
			fa_mbarrier_arrive(shared + C::LIST_FULL + 8 * slot.stage);
		slot.advance();
	}
}

/* Tiles of a block of rows: the lowest, then from the highest on downwards, as with FIRST_TILE_FIRST.
 * A warp calls; all lanes have the same numbers. */
template <class C> struct fa_sm90_listed_tiles {
	const uint32_t *lists, *granules;
	fa_sm90_units<C> units;
	bool pattern;
	int32_t next, floor; /* the next unit, and the lowest that is left; next < floor: none */
	int32_t pair[2];     /* the tile's units; -1: none */

	__device__ __forceinline__ fa_sm90_listed_tiles(const struct fa_cuda_masked_attention &args,
	                                                const struct fa_work &work, uint32_t slot)
	    : lists(fa_sm90_list_words<C>(slot, 0)), granules(fa_sm90_list_words<C>(slot, 2)),
	      units(args, work), pattern(args.mask.pattern_tokens != 0)
	{
		pair[0] = above(units.first);
		pair[1] = -1;
		if (pair[0] >= 0 && units.keys == FA_SM90_HALF_KEYS)
			pair[1] = above(pair[0] + 1);
		floor = max(pair[0], pair[1]) + 1;
		next = pair[0] < 0 ? -1 : below(units.last);
	}

	__device__ __forceinline__ uint32_t word(int32_t i) const
	{
		return lists[i] | lists[FA_CUDA_MASK_WORDS + i];
	}

	/* Returns the lowest unit from @unit on, or -1. */
	__device__ __forceinline__ int32_t above(int32_t unit) const
	{
#pragma unroll 1
		for (; unit <= units.last; unit = unit / 32 * 32 + 32) {
			const uint32_t bits = word(unit / 32) >> unit % 32;

			if (bits) {
				unit += __ffs((int)bits) - 1;
				return unit <= units.last ? unit : -1;
			}
		}
		return -1;
	}

	/* Returns the highest unit up to @unit, or a number below the floor. */
	__device__ __forceinline__ int32_t below(int32_t unit) const
	{
#pragma unroll 1
		for (; unit >= floor; unit = unit / 32 * 32 - 1) {
			const uint32_t bits = word(unit / 32) << (31 - unit % 32);

			if (bits)
				return unit - __clz((int)bits);
		}
		return -1;
	}

	__device__ __forceinline__ bool is_last(void) const
	{
		return next < floor;
	}

	__device__ __forceinline__ void advance(void)
	{
		pair[0] = next;
		pair[1] = -1;
		next = below(next - 1);
		if (units.keys == FA_SM90_HALF_KEYS && next >= floor) {
			pair[1] = next;
			next = below(next - 1);
		}
	}

	/* Returns the word of a half. A block without units has one tile that no row sees. */
	__device__ __forceinline__ uint32_t half(int h) const
	{
		const bool halves = units.keys == FA_SM90_HALF_KEYS;
		const int32_t unit = halves && h > 0 ? pair[1] : pair[0];
		const int32_t given = unit >= 0 ? unit : pair[0] >= 0 ? pair[0] : units.last;
		const uint32_t at = halves ? (uint32_t)given : (uint32_t)(2 * given + h);
		uint32_t half = at, strided = 15;

		if (unit >= 0) {
			half |= lists[unit / 32] >> unit % 32 & 1 ? FA_SM90_HALF_SEEN(0) : 0;
			half |= lists[FA_CUDA_MASK_WORDS + unit / 32] >> unit % 32 & 1
			                ? FA_SM90_HALF_SEEN(1)
			                : 0;
			if (pattern)
				strided = granules[at / 8] >> at % 8 * 4 & 15;
		}
		half |= strided << FA_SM90_HALF_GRANULES;
		return half | (h == 0 && is_last() ? FA_SM90_HALF_LAST : 0);
	}
};

/* Coordinates of the boxes of a tile's halves. */
struct fa_sm90_halves {
	int32_t key[2], head, sequence, column;
};

template <class C, int COLUMNS>
__device__ __forceinline__ void fa_sm90_fetch_halves(const struct fa_sm90_halves &tile, uint32_t to,
                                                     const void *map, uint32_t barrier,
                                                     int32_t first_column, uint64_t policy)
{
	constexpr uint32_t half_bytes = FA_SM90_HALF_KEYS * C::COLUMN_BYTES;

	fa_mbarrier_arrive_expect(barrier, COLUMNS * C::KV_COLUMN);
#pragma unroll
	for (int c = 0; c < COLUMNS; c++)
#pragma unroll
		for (int h = 0; h < 2; h++)
			fa_tma_load(to + c * C::KV_COLUMN + h * half_bytes, map, barrier,
			            first_column + c * 64, tile.key[h], tile.head, tile.sequence,
			            policy);
}

/* Warp 0, all threads. */
template <class C>
__device__ __forceinline__ void fa_sm90_load_listed(const struct fa_cuda_masked_attention &args,
                                                    const struct fa_cuda_maps &maps,
                                                    uint32_t shared)
{
	const uint64_t keep = fa_tma_policy_keep(), once = fa_tma_policy_once();
	const struct fa_cuda_preempt &yield = args.attention.preempt;
	const uint32_t done_before = fa_ld_shared(shared + C::RECORD + 4);
	typename C::SOURCE::template PRODUCER_SCHEDULER<C> scheduler(args);
	typename C::SOURCE::BLOCK block;
	typename C::SOURCE::WORK work;
	struct fa_sm90_ring_position<C::STAGES> k, v;
	struct fa_sm90_ring_position<C::Q_SLOTS> q;
	struct fa_sm90_ring_position<2> slot;
	struct fa_sm90_halves now, before; /* V runs one tile behind K, also across blocks */
	bool pending = false, stopped = false;
	uint32_t begun = 0;

	const auto fetch_k = [&](const fa_sm90_listed_tiles<C> &tiles) {
		uint32_t halves[2];

#pragma unroll
		for (int h = 0; h < 2; h++) {
			halves[h] = tiles.half(h);
			now.key[h] = fa_sm90_half_key(halves[h]);
		}
		fa_mbarrier_wait(shared + C::K_EMPTY + 8 * k.stage, k.parity ^ 1);
		if (fa_elect()) {
#pragma unroll
			for (int h = 0; h < 2; h++)
				fa_st_shared(shared + C::HALVES + 8 * k.stage + 4 * h, halves[h]);
			fa_sm90_fetch_halves<C, C::COLUMNS>(
				now, shared + C::K_AT + k.stage * C::K_BYTES,
				&maps.maps[FA_CUDA_MAP_K], shared + C::K_FULL + 8 * k.stage, 0,
				keep);
		}
		k.advance();
	};
	const auto fetch_v = [&](void) {
		fa_mbarrier_wait(shared + C::V_EMPTY + 8 * v.stage, v.parity ^ 1);
		if (fa_elect())
			fa_sm90_fetch_halves<C, C::COLUMNS_V>(
				before, shared + C::V_AT + v.stage * C::V_BYTES,
				&maps.maps[FA_CUDA_MAP_V], shared + C::V_FULL + 8 * v.stage,
				before.column, keep);
		v.advance();
	};
	/* Reads the stop request while waiting for the stage. */
	const auto stops = [&](void) {
		bool asked;

		if (!yield.word)
			return false;
		asked = fa_preempt_requested(yield);
		fa_mbarrier_wait(shared + C::K_EMPTY + 8 * k.stage, k.parity ^ 1);
		return __any_sync(~0u, asked) &&
		       fa_sm90_yield_stop<C>(yield, shared, k.stage, begun, 0);
	};

#pragma unroll 1
	while (scheduler.next(args, block, work)) {
		if (fa_sm90_tile_range_get<C>(args.attention, work).count == 0)
			continue;
		if (begun < done_before) {
			begun++;
			continue;
		}
		if (begun > done_before && stops()) {
			stopped = true;
			break;
		}
		now.head = (int32_t)((uint32_t)work.head / (uint32_t)args.attention.group);
		now.sequence = work.sequence;
		now.column = work.slice * C::DIM_V;
#pragma unroll 1
		for (int group = 0; group < C::GROUPS; group++) {
			fa_mbarrier_wait(shared + C::Q_EMPTY + 8 * q.stage, q.parity ^ 1);
			fa_sm90_fetch_q<C>(
				shared + C::Q_AT + q.stage * C::Q_BYTES, &maps.maps[FA_CUDA_MAP_Q],
				shared + C::Q_FULL + 8 * q.stage, work.row + group * C::GROUP_ROWS,
				work.head, work.sequence, once);
			q.advance();
		}
		fa_mbarrier_wait(shared + C::LIST_FULL + 8 * slot.stage, slot.parity);
		fa_sm90_listed_tiles<C> tiles(args, work, slot.stage);
#pragma unroll 1
		for (bool last = false; !last;) {
			last = tiles.is_last();
			fetch_k(tiles);
			if (pending)
				fetch_v();
			pending = true;
			before = now;
			if (!last)
				tiles.advance();
		}
		__syncwarp();
		if (threadIdx.x == 0)
			fa_mbarrier_arrive(shared + C::LIST_EMPTY + 8 * slot.stage);
		slot.advance();
		begun++;
	}
	if (stopped && threadIdx.x == 0) {
		/* Warp 1 waits for the place that the next block's bits have. */
		fa_st_shared(shared + C::LISTS_END, 1);
		fa_mbarrier_arrive(shared + C::LIST_EMPTY + 8 * slot.stage);
	}
	if (!pending)
		return;
	fetch_v();
	if (!stopped) {
		fa_mbarrier_wait(shared + C::K_EMPTY + 8 * k.stage, k.parity ^ 1);
		fa_sm90_post_stop<C>(shared, k.stage, FA_SM90_ENDED);
	}
}
