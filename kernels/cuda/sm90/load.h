/*
 * The producer: TMA loads of Q per block of rows and of the K and V tiles that they see, as far
 * ahead as the rings allow. Where tiles have many boxes, several warps issue them; warp 0 arms the
 * mbarriers and decides where to yield.
 */
#pragma once

#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/dense_source.h"
#include "kernels/cuda/sm90/tile_range.h"
#include "kernels/cuda/sm90/yield.h"

#include <stdint.h>

template <int STAGES> struct fa_sm90_ring_position {
	uint32_t stage = 0, parity = 0;

	__device__ __forceinline__ void advance(uint32_t count = 1)
	{
		stage += count;
		if (stage >= STAGES) {
			stage -= STAGES;
			parity ^= 1;
		}
	}
};

/* Called by a warp, issued by one thread. */
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

template <class C> struct fa_sm90_load_block {
	int32_t token, head, sequence; /* of the block's first row in Q */
	int32_t set;                   /* PACKED */
	typename C::SOURCE::template TILE<C> tile;
	int32_t count;
	bool reversed;

	/* Goes to the next block whose rows see a key; false: no more. @left: remaining tiles; 0:
	 * all. */
	__device__ __forceinline__ bool
	next(const typename C::ARGS &all,
	     typename C::SOURCE::template PRODUCER_SCHEDULER<C> &scheduler, int32_t left)
	{
		const struct fa_cuda_attention &args = C::SOURCE::attention(all);
		typename C::SOURCE::BLOCK block;
		typename C::SOURCE::WORK work;

#pragma unroll 1
		while (scheduler.next(all, block, work)) {
			const struct fa_sm90_tile_range range = fa_sm90_tile_range_get<C>(args,
			                                                                  work);

			if (range.count == 0)
				continue;
			token = (int32_t)work.first_q + work.row;
			head = work.head;
			if constexpr (C::PACKED)
				set = work.set;
			reversed = scheduler.reversed;
			sequence = args.cu_seqlens_q ? 0 : work.sequence;
			count = left ? left : range.count;
			tile.begin(all, work, fa_sm90_tile_at<C>(range, count),
			           fa_sm90_tile_at<C>(range, count - 1));
			return true;
		}
		return false;
	}
};

/* LOOKAHEAD: the next block's descriptor, read early. Not for ragged tensors. */
template <class C> struct fa_sm90_next_block {
	int32_t token, last, count;
	bool there = false, reversed;
	typename C::SOURCE::WORK work;

	__device__ __forceinline__ void
	look(const typename C::ARGS &all,
	     typename C::SOURCE::template PRODUCER_SCHEDULER<C> &scheduler)
	{
		const struct fa_cuda_attention &args = C::SOURCE::attention(all);
		typename C::SOURCE::BLOCK block;

		there = false;
#pragma unroll 1
		while (!there && scheduler.next(all, block, work)) {
			const struct fa_sm90_tile_range range = fa_sm90_tile_range_get<C>(args,
			                                                                  work);

			there = range.count > 0;
			last = range.last;
			count = range.count;
			token = (int32_t)work.first_q + work.row;
			reversed = scheduler.reversed;
		}
	}

	__device__ __forceinline__ void take(const typename C::ARGS &all,
	                                     struct fa_sm90_load_block<C> &ret_rows,
	                                     int32_t left) const
	{
		ret_rows.token = token;
		ret_rows.head = work.head;
		if constexpr (C::PACKED)
			ret_rows.set = work.set;
		ret_rows.sequence = 0;
		ret_rows.reversed = reversed;
		ret_rows.count = left ? left : count;
		ret_rows.tile.begin(all, work, fa_sm90_tile_at<C>({ last, count }, ret_rows.count),
		                    fa_sm90_tile_at<C>({ last, count }, ret_rows.count - 1));
	}
};

/* Prefetches to L2 the next block's Q, and K and V tiles that no concurrent block sees. */
template <class C>
__device__ __forceinline__ void
fa_sm90_prefetch_next(const typename C::ARGS &args, const struct fa_cuda_maps &maps,
                      typename C::SOURCE::template PRODUCER_SCHEDULER<C> scheduler)
{
	const uint64_t keep = fa_tma_policy_keep(), once = fa_tma_policy_once();
	struct fa_sm90_load_block<C> next;

	if (!next.next(args, scheduler, 0) || !fa_elect())
		return;
#pragma unroll 1
	for (int c = 0; c < C::GROUPS * C::COLUMNS; c++)
		fa_tma_prefetch(&maps.maps[FA_CUDA_MAP_Q], c % C::COLUMNS * 64,
		                next.token + c / C::COLUMNS * C::GROUP_ROWS, next.head,
		                next.sequence, once);
#pragma unroll 1
	for (int i = 0; i < C::NEW_TILES; i++) {
		next.tile.template prefetch<C::COLUMNS>(&maps.maps[FA_CUDA_MAP_K], 0, keep);
		next.tile.template prefetch<C::COLUMNS_V>(&maps.maps[FA_CUDA_MAP_V],
		                                          next.tile.column, keep);
		next.tile.retreat(args, C::KEYS);
	}
}

/* Called by all threads of a producer warp; elected threads issue. */
template <class C>
__device__ __forceinline__ void fa_sm90_load(const typename C::ARGS &args,
                                             const struct fa_cuda_maps &maps, uint32_t shared)
{
	const uint64_t keep = fa_tma_policy_keep(), once = fa_tma_policy_once();
	struct fa_sm90_ring_position<C::STAGES> k, v;
	struct fa_sm90_ring_position<C::Q_SLOTS> q;
	typename C::SOURCE::template PRODUCER_SCHEDULER<C> scheduler(args);
	struct fa_sm90_load_block<C> now;
	struct fa_sm90_next_block<C> upcoming; /* LOOKAHEAD */
	/* V runs one tile behind K, also across blocks. */
	typename C::SOURCE::template TILE<C> v_tile;
	const uint32_t loaders = C::SOURCE::loaders(args);
	const uint32_t warp = C::PAGED ? __shfl_sync(~0u, threadIdx.x / 32, 0) : 0;
	bool pending = false, stopped = false;

	if constexpr (C::LOOKAHEAD)
		upcoming.look(args, scheduler);

	/* A resumed thread block's finished blocks of rows, and tiles left of the next one. */
	const auto done_before = [&](void) {
		return C::YIELDS ? fa_ld_shared(shared + C::RECORD + 4) : 0;
	};
	const auto left_of = [&](uint32_t begun) {
		return C::YIELDS_IN_BLOCK && begun == done_before()
		               ? (int32_t)fa_ld_shared(shared + C::RECORD + 8)
		               : 0;
	};
	const struct fa_cuda_preempt &yield = C::SOURCE::attention(args).preempt;
	const auto wait_k_empty = [&](void) {
		fa_mbarrier_wait(shared + C::K_EMPTY + 8 * k.stage, k.parity ^ 1);
	};
	/* The launch yields before the next K tile. Reads the stop request while waiting for the
	 * stage. */
	const auto stops = [&](uint32_t begun, uint32_t left) {
		bool asked;

		if (!C::YIELDS || !yield.word)
			return false;
		asked = fa_preempt_requested(yield);
		wait_k_empty();
		return __any_sync(~0u, asked) &&
		       fa_sm90_yield_stop<C>(yield, shared, k.stage, begun, left);
	};
	/* Warp 0 decides for all producer warps; the barrier publishes. */
	const auto all_stop = [&](uint32_t begun, uint32_t left) {
		bool stop = warp == 0 && stops(begun, left);

		if (C::PAGED && C::YIELDS && loaders > 1 && yield.word) {
			fa_barrier_sync(C::producers_barrier(), loaders * 32);
			if (warp > 0)
				stop = fa_ld_shared(shared + C::STOP + 4 * k.stage) != 0;
		}
		return stop;
	};

	const auto fetch_q = [&](const struct fa_sm90_load_block<C> &rows, int group) {
		int32_t token = rows.token, head = rows.head;

		if constexpr (C::PACKED)
			C::SOURCE::place(args, group, rows.set, head, token);
		else
			token = fa_sm90_group_row<C>(
				token, group, C::LOOKAHEAD ? rows.reversed : scheduler.reversed);
		fa_mbarrier_wait(shared + C::Q_EMPTY + 8 * q.stage, q.parity ^ 1);
		fa_sm90_fetch_q<C>(shared + C::Q_AT + q.stage * C::Q_BYTES,
		                   &maps.maps[FA_CUDA_MAP_Q], shared + C::Q_FULL + 8 * q.stage,
		                   token, head, rows.sequence, once);
		q.advance();
	};
	/* The late slots' previous tiles must be consumed: else a consumer that waits for late Q
	 * would take an earlier phase for it. */
	const auto wait_late_q = [&](void) {
		struct fa_sm90_ring_position<C::Q_SLOTS> late = q;

#pragma unroll
		for (int n = C::Q_EARLY; n < C::GROUPS; n++) {
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
	for (uint32_t begun = 0;
	     C::LOOKAHEAD ? upcoming.there : now.next(args, scheduler, left_of(begun)); begun++) {
		if constexpr (C::LOOKAHEAD)
			upcoming.take(args, now, left_of(begun));
		if (C::YIELDS && begun < done_before()) {
			if constexpr (C::LOOKAHEAD)
				upcoming.look(args, scheduler);
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
				for (; group < (i > 0 ? C::GROUPS : C::Q_EARLY); group++)
					fetch_q(now, group);
				if (i == now.count)
					break;
				if (i > 0) {
					/* In the middle of a block no load is urgent. */
					if (i == now.count / 2)
						fa_sm90_prefetch_next<C>(args, maps, scheduler);
					now.tile.retreat(args, C::KEYS);
				} else {
					wait_late_q();
				}
				fetch_k();
				if (pending)
					fetch_v();
				pending = true;
				v_tile = now.tile;
			}
		} else {
#pragma unroll 1
			for (int group = 0; warp == 0 && group < C::Q_EARLY; group++)
				fetch_q(now, group);
			if (warp == 0)
				wait_late_q();
			fetch_k();
			if (pending)
				fetch_v();
#pragma unroll 1
			for (int group = C::Q_EARLY; warp == 0 && group < C::GROUPS; group++)
				fetch_q(now, group);
			pending = true;
			v_tile = now.tile;
			if constexpr (C::LOOKAHEAD)
				upcoming.look(args, scheduler);
#pragma unroll 1
			for (int32_t i = 1; i < now.count; i++) {
				if (C::YIELDS && all_stop(begun, (uint32_t)(now.count - i))) {
					stopped = true;
					break;
				}
				now.tile.retreat(args,
				                 C::FIRST_TILE_FIRST && i == 1 && !left_of(begun)
				                         ? (1 - now.count) * C::KEYS
				                         : C::KEYS);
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
		fa_sm90_post_stop<C>(shared, k.stage, FA_SM90_ENDED);
	}
}
