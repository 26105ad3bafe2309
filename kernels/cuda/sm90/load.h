/*
 * The loading warpgroup's part: one thread has TMA fetch Q of every block of rows and
 * the tiles of K and V that those rows see, as far ahead as there is room, in the order
 * in which they are used. Where tiles come in many boxes several warps start their copies: a
 * warp starts one after another, whichever lane asks. The first of them expects the bytes of
 * all, and decides where they stop.
 */
#pragma once

#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/dense.h"
#include "kernels/cuda/sm90/span.h"
#include "kernels/cuda/sm90/yield.h"

#include <stdint.h>

/* A place in a ring of STAGES tiles, and how often it was passed, as parity. */
template <int STAGES> struct fa_sm90_place {
	uint32_t stage = 0, parity = 0;

	/* @count is at most STAGES. */
	__device__ __forceinline__ void advance(uint32_t count = 1)
	{
		stage += count;
		if (stage >= STAGES) {
			stage -= STAGES;
			parity ^= 1;
		}
	}
};

/* The same for a group's rows of Q: one thread does. */
template <class C>
__device__ __forceinline__ void fa_sm90_fetch_q(uint32_t shared, const void *map, uint32_t barrier,
                                                int32_t token, int32_t head, int32_t sequence,
                                                uint64_t policy)
{
	constexpr int columns = C::COLUMNS;

	if (!fa_elect())
		return;
	fa_mbarrier_arrive_expect(barrier, columns * C::Q_COLUMN);
#pragma unroll
	for (int c = 0; c < columns; c++)
		fa_tma_load(shared + c * C::Q_COLUMN, map, barrier, c * 64, token, head, sequence,
		            policy);
}

/* A block of rows as the loading warp sees it. */
template <class C> struct fa_sm90_rows {
	int32_t token, head, sequence;             /* of Q, the block's first row */
	typename C::SOURCE::template TILE<C> tile; /* that is walked first */
	int32_t count;                             /* of tiles */
	bool turned;                               /* the walk's, of this block */

	/* Goes to the next block whose rows see a key; false: there is none. @left: tiles of it
	 * that are left; 0: all. */
	__device__ __forceinline__ bool next(const typename C::ARGS &all,
	                                     typename C::SOURCE::template LOADERS_WALK<C> &walk,
	                                     int32_t left)
	{
		const struct fa_cuda_attention &args = C::SOURCE::attention(all);
		typename C::SOURCE::BLOCK block;
		typename C::SOURCE::WORK work;

#pragma unroll 1
		while (walk.next(all, block, work)) {
			const struct fa_sm90_span span = fa_sm90_span_get<C>(args, work);

			if (span.count == 0)
				continue;
			token = (int32_t)work.first_q + work.row;
			head = work.head;
			turned = walk.turned;
			sequence = args.cu_seqlens_q ? 0 : work.sequence;
			count = left ? left : span.count;
			tile.begin(all, work, span.last - (span.count - count));
			return true;
		}
		return false;
	}
};

/* The block of rows after the one whose tiles are fetched, as far as it is worth registers: what
 * the list and its request say of it, and the divisions that finding it takes. Its pages are looked
 * up when its turn comes. For sources that have no ragged sequences' tensors (PAGED). */
template <class C> struct fa_sm90_coming {
	int32_t token, last, count;
	bool there = false, turned;
	typename C::SOURCE::WORK work;

	__device__ __forceinline__ void look(const typename C::ARGS &all,
	                                     typename C::SOURCE::template LOADERS_WALK<C> &walk)
	{
		const struct fa_cuda_attention &args = C::SOURCE::attention(all);
		typename C::SOURCE::BLOCK block;

		there = false;
#pragma unroll 1
		while (!there && walk.next(all, block, work)) {
			const struct fa_sm90_span span = fa_sm90_span_get<C>(args, work);

			there = span.count > 0;
			last = span.last;
			count = span.count;
			token = (int32_t)work.first_q + work.row;
			turned = walk.turned;
		}
	}

	/* @left: as of fa_sm90_rows::next(). */
	__device__ __forceinline__ void take(const typename C::ARGS &all,
	                                     struct fa_sm90_rows<C> &ret_rows, int32_t left) const
	{
		ret_rows.token = token;
		ret_rows.head = work.head;
		ret_rows.sequence = 0;
		ret_rows.turned = turned;
		ret_rows.count = left ? left : count;
		ret_rows.tile.begin(all, work, last - (count - ret_rows.count));
	}
};

/* Has L2 fetch what the block after this one begins with: its rows of Q, and the tiles of K and
 * V that blocks beside it do not see. */
template <class C>
__device__ __forceinline__ void
fa_sm90_touch_next(const typename C::ARGS &args, const struct fa_cuda_maps &maps,
                   typename C::SOURCE::template LOADERS_WALK<C> walk)
{
	const uint64_t keep = fa_tma_policy_keep(), once = fa_tma_policy_once();
	struct fa_sm90_rows<C> next;

	if (!next.next(args, walk, 0) || !fa_elect())
		return;
#pragma unroll 1
	for (int c = 0; c < C::GROUPS * C::COLUMNS; c++)
		fa_tma_touch(&maps.maps[FA_CUDA_MAP_Q], c % C::COLUMNS * 64,
		             next.token + c / C::COLUMNS * C::GROUP_ROWS, next.head, next.sequence,
		             once);
#pragma unroll 1
	for (int i = 0; i < C::NEW_TILES; i++) {
		next.tile.template touch<C::COLUMNS>(&maps.maps[FA_CUDA_MAP_K], 0, keep);
		next.tile.template touch<C::COLUMNS_V>(&maps.maps[FA_CUDA_MAP_V], next.tile.column,
		                                       keep);
		next.tile.retreat(args);
	}
}

/* Whole warps', though one thread or a few issue: warps know how to agree on the work. */
template <class C>
__device__ __forceinline__ void fa_sm90_load(const typename C::ARGS &args,
                                             const struct fa_cuda_maps &maps, uint32_t shared)
{
	const uint64_t keep = fa_tma_policy_keep(), once = fa_tma_policy_once();
	struct fa_sm90_place<C::STAGES> k, v;
	struct fa_sm90_place<C::Q_SLOTS> q;
	typename C::SOURCE::template LOADERS_WALK<C> walk(args);
	struct fa_sm90_rows<C> now;
	struct fa_sm90_coming<C> coming; /* if COMING */
	/* V's last tile of a block comes after K's first of the next. */
	typename C::SOURCE::template TILE<C> v_tile;
	const uint32_t loaders = C::SOURCE::loaders(args);
	const uint32_t warp = C::PAGED ? __shfl_sync(~0u, threadIdx.x / 32, 0) : 0;
	bool pending = false, stopped = false;

	if constexpr (C::COMING)
		coming.look(args, walk);

	/* Of a block of threads that goes on: blocks of rows that are done, tiles left of the
	 * next. */
	const auto done_before = [&](void) {
		return C::YIELDS ? fa_ld_shared(shared + C::RECORD + 4) : 0;
	};
	const auto left_of = [&](uint32_t begun) {
		return C::YIELDS_INSIDE && begun == done_before()
		               ? (int32_t)fa_ld_shared(shared + C::RECORD + 8)
		               : 0;
	};
	const struct fa_cuda_yield &yield = C::SOURCE::attention(args).yield;
	const auto wait_k_empty = [&](void) {
		fa_mbarrier_wait(shared + C::K_EMPTY + 8 * k.stage, k.parity ^ 1);
	};
	/* Whether all stop before the tile that is next in K's ring. The word comes while the
	 * warp waits for the tile's place. */
	const auto stops = [&](uint32_t begun, uint32_t left) {
		bool asked;

		if (!C::YIELDS || !yield.word)
			return false;
		asked = fa_yield_asked(yield);
		wait_k_empty();
		return __any_sync(~0u, asked) &&
		       fa_sm90_stop<C>(yield, shared, k.stage, begun, left);
	};
	/* The same, if several warps load: the others hear of it. */
	const auto all_stop = [&](uint32_t begun, uint32_t left) {
		bool stop = warp == 0 && stops(begun, left);

		if (C::PAGED && C::YIELDS && loaders > 1 && yield.word) {
			fa_barrier_sync(C::loaders_barrier(), loaders * 32);
			if (warp > 0)
				stop = fa_ld_shared(shared + C::STOP + 4 * k.stage) != 0;
		}
		return stop;
	};

	const auto fetch_q = [&](const struct fa_sm90_rows<C> &rows, int group) {
		fa_mbarrier_wait(shared + C::Q_EMPTY + 8 * q.stage, q.parity ^ 1);
		fa_sm90_fetch_q<C>(shared + C::Q_AT + q.stage * C::Q_BYTES,
		                   &maps.maps[FA_CUDA_MAP_Q], shared + C::Q_FULL + 8 * q.stage,
		                   fa_sm90_group_row<C>(rows.token, group,
		                                        C::COMING ? rows.turned : walk.turned),
		                   rows.head, rows.sequence, once);
		q.advance();
	};
	/* Groups with a block's first tile wait for those rows that come behind it, and could take
	 * rows for them that have not come either. */
	const auto await_late_q = [&](void) {
		struct fa_sm90_place<C::Q_SLOTS> late = q;

#pragma unroll
		for (int n = C::Q_FIRST; n < C::GROUPS; n++) {
			fa_mbarrier_wait(shared + C::Q_FULL + 8 * late.stage, late.parity ^ 1);
			late.advance();
		}
	};
	const auto fetch_k = [&](void) {
		wait_k_empty();
		now.tile.template fetch<C::COLUMNS>(args, shared + C::K_AT + k.stage * C::K_BYTES,
		                                    &maps.maps[FA_CUDA_MAP_K],
		                                    shared + C::K_FULL + 8 * k.stage, 0, keep);
		k.advance();
	};
	const auto fetch_v = [&](void) {
		fa_mbarrier_wait(shared + C::V_EMPTY + 8 * v.stage, v.parity ^ 1);
		v_tile.template fetch<C::COLUMNS_V>(
			args, shared + C::V_AT + v.stage * C::V_BYTES, &maps.maps[FA_CUDA_MAP_V],
			shared + C::V_FULL + 8 * v.stage, v_tile.column, keep);
		v.advance();
	};

#pragma unroll 1
	for (uint32_t begun = 0; C::COMING ? coming.there : now.next(args, walk, left_of(begun));
	     begun++) {
		if constexpr (C::COMING)
			coming.take(args, now, left_of(begun));
		if (C::YIELDS && begun < done_before()) {
			if constexpr (C::COMING)
				coming.look(args, walk);
			continue;
		}
		if (C::YIELDS && begun > done_before() && all_stop(begun, 0)) {
			stopped = true;
			break;
		}
		if constexpr (C::WINDOW) {
			int group = 0;

#pragma unroll 1
			for (int32_t i = 0;; i++) {
#pragma unroll 1
				for (; group < (i > 0 ? C::GROUPS : C::Q_FIRST); group++)
					fetch_q(now, group);
				if (i == now.count)
					break;
				if (i > 0) {
					/* Here nobody waits for memory. */
					if (i == now.count / 2)
						fa_sm90_touch_next<C>(args, maps, walk);
					now.tile.retreat(args);
				} else {
					await_late_q();
				}
				fetch_k();
				if (pending)
					fetch_v();
				pending = true;
				v_tile = now.tile;
			}
		} else {
#pragma unroll 1
			for (int group = 0; warp == 0 && group < C::Q_FIRST; group++)
				fetch_q(now, group);
			if (warp == 0)
				await_late_q();
			fetch_k();
			if (pending)
				fetch_v();
#pragma unroll 1
			for (int group = C::Q_FIRST; warp == 0 && group < C::GROUPS; group++)
				fetch_q(now, group);
			pending = true;
			v_tile = now.tile;
			/* While there is something to be computed. */
			if constexpr (C::COMING)
				coming.look(args, walk);
#pragma unroll 1
			for (int32_t i = 1; i < now.count; i++) {
				if (C::YIELDS && all_stop(begun, (uint32_t)(now.count - i))) {
					stopped = true;
					break;
				}
				now.tile.retreat(args);
				fetch_k();
				fetch_v();
				v_tile = now.tile;
			}
		}
		if (C::YIELDS && stopped)
			break;
	}
	if (!pending)
		return;
	fetch_v();
	if (C::YIELDS && !stopped && warp == 0) {
		wait_k_empty();
		fa_sm90_say<C>(shared, k.stage, FA_SM90_ENDED);
	}
}
