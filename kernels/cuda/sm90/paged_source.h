/*
 * Source (dense_source.h) of keys in pages and rows in dense tensors. The plan lists blocks of
 * rows, longest first; blocks i and n - 1 - i are a pair, so that pairs are about equally long.
 * Rounds alternate in direction: a short pair follows a long one.
 */
#pragma once

#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/common/own.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/own_prefill_plan.h"
#include "kernels/cuda/sm90/tile_range.h"
#include "kernels/cuda/sm90/yield.h"

#include <stdint.h>

struct fa_sm90_page_work : fa_work {
	int32_t first; /* earlier tokens are hidden */
	uint32_t table_start;
};

/* A group's rows. rows: part << FA_SM90_PAGE_ROWS_BITS | number of rows. */
struct fa_sm90_page_block {
	int32_t row;
	uint32_t part_rows;
};

#define FA_SM90_PAGE_ROWS_BITS 7
static_assert(FA_SM90_GROUP_ROWS < 1 << FA_SM90_PAGE_ROWS_BITS, "a number of rows fits");
static_assert(FA_CUDA_PAGED_HEAD_SLICES_MAX <= 1u << (32 - FA_SM90_PAGE_ROWS_BITS),
              "a part's number fits");

__device__ __forceinline__ void fa_sm90_page_part(const struct fa_cuda_attention &args,
                                                  int32_t part, struct fa_work &work)
{
	work.sequence = 0;
	work.first_k = 0;
	work.slice = args.slices > 1 ? (int32_t)((uint32_t)part / (uint32_t)args.heads) : 0;
	work.head = part - work.slice * args.heads;
}

/* AHEAD: loads the next entry of the list early, which costs registers. */
template <class C, bool AHEAD> struct fa_sm90_page_scheduler {
	static constexpr bool PLANS = C::SOURCE::template plans_itself<C>;
	uint32_t round; /* number of the round's first pair */
	bool backwards = false, reversed = true;
	int32_t at;       /* next entry of the list; -1: none */
	int32_t opposite; /* second entry of the pair; -1: none or done */
	int32_t part;
	struct fa_cuda_paged_block ahead;

	__device__ __forceinline__ fa_sm90_page_scheduler(const struct fa_cuda_paged_attention &all)
	{
		round = 0;
		find(all);
	}

	/* Over a client's own pages it is in the device's plan. */
	static __device__ __forceinline__ uint32_t
	blocks_of(const struct fa_cuda_paged_attention &all)
	{
		if constexpr (PLANS)
			if (!fa_own_of(all).ranges)
				return fa_sm90_own_prefill_plan(all)->blocks_n;
		if constexpr (C::SOURCE::OWN)
			return fa_own_of(all).ranges->forward_blocks;
		else
			return (uint32_t)all.attention.blocks_m;
	}

	static __device__ __forceinline__ const struct fa_cuda_paged_block *
	block_at(const struct fa_cuda_paged_attention &all, int32_t at)
	{
		if constexpr (PLANS)
			if (!fa_own_of(all).ranges)
				return fa_sm90_own_prefill_plan(all)->blocks + at;
		return all.blocks + at;
	}

	static __device__ __forceinline__ const uint4 *
	item_at(const struct fa_cuda_paged_attention &all, uint32_t item)
	{
		if constexpr (PLANS)
			if (!fa_own_of(all).ranges)
				return (const uint4 *)(fa_sm90_own_prefill_plan(all)->items + item);
		return (const uint4 *)(all.items + item);
	}

	/* False: all blocks of rows run at once. */
	static __device__ __forceinline__ bool paired(const struct fa_cuda_paged_attention &all)
	{
		if constexpr (C::SOURCE::OWN)
			return (uint32_t)all.attention.triples * blocks_of(all) >
			       fa_sm90_blocks<C>(all.attention);
		else
			return all.attention.pairs;
	}

	/* Pairs, or blocks that are not paired, of a head and slice of a client's own pages. */
	static __device__ __forceinline__ uint32_t
	own_units(const struct fa_cuda_paged_attention &all)
	{
		return paired(all) ? (blocks_of(all) + 1) / 2 : blocks_of(all);
	}

	static __device__ __forceinline__ uint32_t
	pairs_of(const struct fa_cuda_paged_attention &all)
	{
		if constexpr (C::SOURCE::OWN)
			return (uint32_t)all.attention.triples * own_units(all);
		else
			return all.pairs;
	}

	static __device__ __forceinline__ uint32_t
	section_pairs_of(const struct fa_cuda_paged_attention &all)
	{
		if constexpr (C::SOURCE::OWN)
			return (uint32_t)all.attention.section * own_units(all);
		else
			return all.section_pairs;
	}

	/* Pairs are numbered by sections of parts whose keys fit in L2 together. */
	__device__ __forceinline__ void find(const struct fa_cuda_paged_attention &all)
	{
		const struct fa_cuda_attention &args = all.attention;
		const uint32_t block = fa_sm90_block_index<C>();
		const uint32_t index = round +
		                       (backwards ? fa_sm90_blocks<C>(args) - 1 - block : block);
		const uint32_t section_pairs = section_pairs_of(all);
		/* A short step has one section; the test saves a division. */
		const uint32_t section = pairs_of(all) <= section_pairs ? 0 : index / section_pairs;
		const uint32_t rest = index - section * section_pairs;
		const uint32_t width = min((uint32_t)args.section,
		                           (uint32_t)args.triples - section * args.section);

		at = -1;
		if (index >= pairs_of(all))
			return;
		const uint32_t pair = rest / width;

		part = (int32_t)(section * args.section + (rest - pair * width));
		opposite = (int32_t)(blocks_of(all) - 1 - pair);
		if (opposite == (int32_t)pair || !paired(all))
			opposite = -1;
		go(all, (int32_t)pair);
	}

	__device__ __forceinline__ void go(const struct fa_cuda_paged_attention &all, int32_t to)
	{
		at = to;
		if (AHEAD)
			ahead = *block_at(all, at);
	}

	__device__ __forceinline__ bool next(const struct fa_cuda_paged_attention &all,
	                                     struct fa_sm90_page_block &ret_block,
	                                     struct fa_sm90_page_work &ret_work)
	{
		const struct fa_cuda_attention &args = all.attention;

		if (at < 0)
			return false;
		if (!AHEAD)
			ahead = *block_at(all, at);

		const uint4 *words = item_at(all, ahead.item);
		const uint4 b = words[1], c = words[2];

		fa_sm90_page_part(args, part, ret_work);
		ret_work.row = __shfl_sync(~0u, ahead.row, 0);
		ret_work.first_q = __shfl_sync(~0u, b.x, 0);
		ret_work.n_q = __shfl_sync(~0u, b.y, 0);
		ret_work.n_k = __shfl_sync(~0u, b.z, 0);
		ret_work.first = __shfl_sync(~0u, c.x, 0);
		ret_work.table_start = __shfl_sync(~0u, c.y, 0);
		if constexpr (C::SOURCE::OWN)
			ret_work.diagonal = __shfl_sync(~0u, c.w, 0) - ret_work.n_q;
		else
			ret_work.diagonal = ret_work.n_k - ret_work.n_q;
		ret_block.part_rows = (uint32_t)part << FA_SM90_PAGE_ROWS_BITS;
		reversed = !reversed;

		if (opposite >= 0) {
			go(all, opposite);
			opposite = -1;
		} else {
			round += fa_sm90_blocks<C>(args);
			backwards = !backwards;
			find(all);
		}
		return true;
	}
};

/* A tile is loaded in boxes of keys of one page. Each lane of a producer warp has the place of
 * one box. */
template <class C> struct fa_sm90_page_tile {
	static constexpr int32_t NOWHERE = INT32_MAX; /* TMA fills zeros */
	static_assert((C::KEYS & (C::KEYS - 1)) == 0, "boxes and loaders are powers of 2");

	int32_t key; /* first key of this lane's box */
	int32_t head, column;
	int32_t begin_key, end_key;
	uint32_t table_start;
	int32_t slot, token;           /* its page and token in the page */
	int32_t next_slot, next_token; /* of the next tile */

	__device__ __forceinline__ void look_up(const struct fa_cuda_paged_attention &all,
	                                        int32_t at, int32_t &ret_slot,
	                                        int32_t &ret_token) const
	{
		const uint32_t strip = (uint32_t)at / 16;
		const uint32_t page = (uint32_t)(strip * all.pages.page_magic >> 32);

		ret_slot = NOWHERE;
		ret_token = (int32_t)(strip - page * all.pages.page_strips) * 16;
		/* A page without visible keys needs no entry in the table. */
		if (at + all.box_keys > begin_key && at < end_key && at >= 0) {
			if constexpr (C::SOURCE::OWN)
				ret_slot = (int32_t)fa_own_entry(all, table_start + page);
			else
				ret_slot = (int32_t)all.pages.table[table_start + page];
		}
	}

	__device__ __forceinline__ void begin(const struct fa_cuda_paged_attention &all,
	                                      const struct fa_sm90_page_work &work, int32_t tile,
	                                      int32_t next)
	{
		head = (int32_t)((uint32_t)work.head / (uint32_t)all.attention.group);
		column = work.slice * C::DIM_V;
		begin_key = work.first;
		end_key = work.n_k;
		table_start = work.table_start;
		key = tile * C::KEYS + (int32_t)(threadIdx.x % 32) * all.box_keys;
		look_up(all, key, slot, token);
		look_up(all, key + (next - tile) * C::KEYS, next_slot, next_token);
	}

	/* Goes to the next tile, @keys before this one. */
	__device__ __forceinline__ void retreat(const struct fa_cuda_paged_attention &all,
	                                        int32_t keys)
	{
		key -= keys;
		slot = next_slot;
		token = next_token;
		look_up(all, key - C::KEYS, next_slot, next_token);
	}

	template <int COLUMNS>
	__device__ __forceinline__ void fetch(const struct fa_cuda_paged_attention &all,
	                                      uint32_t shared, const void *map, uint32_t barrier,
	                                      int32_t first_column, uint64_t policy) const
	{
		const int32_t row = (int32_t)(threadIdx.x % 32) * all.box_keys;
		const uint32_t starter = threadIdx.x & (all.loaders - 1);

		if (threadIdx.x == 0)
			fa_mbarrier_arrive_expect(barrier, COLUMNS * C::KV_COLUMN);
		__syncwarp();
		if (row < C::KEYS && starter == threadIdx.x / 32)
#pragma unroll
			for (int c = 0; c < COLUMNS; c++)
				fa_tma_load(shared + c * C::KV_COLUMN + row * C::COLUMN_BYTES, map,
				            barrier, first_column + c * 64, token, head, slot,
				            policy);
		__syncwarp();
	}
};

/* OWN_: a client's own pages (common/own.h). */
template <bool OWN_> struct fa_sm90_pages_of {
	using ARGS = struct fa_cuda_paged_attention;
	using WORK = struct fa_sm90_page_work;
	using BLOCK = struct fa_sm90_page_block;
	template <class C> using SCHEDULER = struct fa_sm90_page_scheduler<C, false>;
	template <class C> using PRODUCER_SCHEDULER = struct fa_sm90_page_scheduler<C, true>;
	template <class C> using TILE = struct fa_sm90_page_tile<C>;
	static constexpr bool PAGED = true, PACKED = false, OWN = OWN_, PLANS = OWN_;

	template <class C>
	static constexpr bool plans_itself = OWN &&FA_SM90_OWN_PREFILL_PLANS(C::DIM, C::SCORE_MOD);

	template <class C> static __device__ __forceinline__ void plan(const ARGS &all)
	{
		if constexpr (plans_itself<C>)
			if (!fa_own_of(all).ranges)
				fa_sm90_own_plan_prefill<C>(all);
	}

	static constexpr bool BAND_SINKS(int dim, int keys)
	{
		return !OWN && FA_SM90_PAGED_BAND_SINKS(dim);
	}

	static __device__ __forceinline__ const struct fa_cuda_attention &attention(const ARGS &all)
	{
		return all.attention;
	}

	static __device__ __forceinline__ uint32_t loaders(const ARGS &all)
	{
		return all.loaders;
	}

	static __device__ __forceinline__ int32_t first_key(const WORK &work)
	{
		return work.first;
	}

	static __device__ __forceinline__ bool tails(const ARGS &)
	{
		return true;
	}

	static __device__ __forceinline__ int32_t origin(const WORK &work)
	{
		return work.row + work.diagonal;
	}

	static __device__ __forceinline__ void keep(const ARGS &, BLOCK &block, const WORK &work,
	                                            int32_t row)
	{
		block.row = (int32_t)work.first_q + row;
		block.part_rows += (uint32_t)max(0, min(work.n_q - row, FA_SM90_GROUP_ROWS));
	}

	/* Rows count from the tensors' first. */
	static __device__ __forceinline__ struct fa_work work_of(const ARGS &all,
	                                                         const BLOCK &block)
	{
		struct fa_work work = {};

		fa_sm90_page_part(all.attention,
		                  (int32_t)(block.part_rows >> FA_SM90_PAGE_ROWS_BITS), work);
		work.row = block.row;
		work.n_q = block.row + (int32_t)(block.part_rows % (1u << FA_SM90_PAGE_ROWS_BITS));
		return work;
	}

	template <class C>
	static __device__ __forceinline__ WORK find(const ARGS &all, const BLOCK &block,
	                                            uint32_t group)
	{
		SCHEDULER<C> scheduler(all);
		BLOCK other;
		WORK work;

#pragma unroll 1
		do {
			scheduler.next(all, other, work);
			work.row = fa_sm90_group_row<C>(work.row, group, scheduler.reversed);
			keep(all, other, work, work.row);
		} while (other.row != block.row || other.part_rows != block.part_rows);
		return work;
	}

	static __device__ __forceinline__ const char *
	row_at(const ARGS &all, const WORK &work, int32_t key, const char *pool, uint32_t row_bytes)
	{
		const uint32_t head = (uint32_t)work.head / (uint32_t)all.attention.group;
		const uint32_t tokens = all.pages.page_strips * 16;
		const uint32_t page = (uint32_t)((uint32_t)key / 16 * all.pages.page_magic >> 32);
		const uint64_t slot = all.pages.table[work.table_start + page];

		return pool + slot * 256 +
		       ((uint64_t)head * tokens + ((uint32_t)key - page * tokens)) * row_bytes;
	}

	static __device__ __forceinline__ const char *k_row(const ARGS &all, const WORK &work,
	                                                    int32_t key)
	{
		if constexpr (OWN) {
			const uint32_t head = (uint32_t)work.head / (uint32_t)all.attention.group;
			uint32_t token;
			const uint32_t page = fa_own_page(all, work.table_start, key, token);

			return all.pages.k + page * fa_own_of(all).k_page +
			       token * fa_own_of(all).k_token + head * fa_own_of(all).k_head;
		}
		return row_at(all, work, key, all.pages.k, all.pages.k_row);
	}

	static __device__ __forceinline__ const char *v_row(const ARGS &all, const WORK &work,
	                                                    int32_t key)
	{
		if constexpr (OWN) {
			const uint32_t head = (uint32_t)work.head / (uint32_t)all.attention.group;
			uint32_t token;
			const uint32_t page = fa_own_page(all, work.table_start, key, token);

			return all.pages.v + page * fa_own_of(all).v_page +
			       token * fa_own_of(all).v_token + head * fa_own_of(all).v_head;
		}
		return row_at(all, work, key, all.pages.v, all.pages.v_row);
	}
};

using fa_sm90_pages = fa_sm90_pages_of<false>;
using fa_sm90_own_pages = fa_sm90_pages_of<true>;
