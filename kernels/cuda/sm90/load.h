/*
 * The loading warpgroup's part: one thread has TMA fetch Q of every block of rows and
 * the tiles of K and V that those rows see, as far ahead as there is room, in the order
 * in which they are used.
 */
#pragma once

#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/span.h"

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

/* Starts the copy of a tile of @columns columns of 64 elements: one thread does. */
template <int columns, uint32_t column_bytes>
__device__ __forceinline__ void fa_sm90_fetch(uint32_t tile, const void *map, uint32_t barrier,
                                              int32_t first_column, int32_t token, int32_t head,
                                              int32_t sequence, uint64_t policy)
{
	if (!fa_elect())
		return;
	fa_mbarrier_arrive_expect(barrier, columns * column_bytes);
#pragma unroll
	for (int c = 0; c < columns; c++)
		fa_tma_load(tile + c * column_bytes, map, barrier, first_column + c * 64, token,
		            head, sequence, policy);
}

/* A block of rows as the loading warp sees it: coordinates of TMA boxes. */
template <class C> struct fa_sm90_source {
	int32_t q_token, q_head, entry;     /* Q's first row */
	int32_t token, head, column, count; /* K's and V's tile that is walked first */

	/* Goes to the next block whose rows see a key; false: there is none. */
	__device__ __forceinline__ bool next(const struct fa_cuda_attention &args,
	                                     struct fa_sm90_walk<C> &walk)
	{
		struct fa_sm90_block block;
		struct fa_work work;

#pragma unroll 1
		while (walk.next(args, block, work)) {
			const struct fa_sm90_span span = fa_sm90_span_get<C>(args, work);

			if (span.count == 0)
				continue;
			q_token = (int32_t)work.first_q + work.row;
			q_head = work.head;
			entry = args.cu_seqlens_q ? 0 : work.sequence;
			token = (int32_t)work.first_k + span.last * C::KEYS;
			head = (int32_t)((uint32_t)work.head / (uint32_t)args.group);
			column = work.slice * C::DIM_V;
			count = span.count;
			return true;
		}
		return false;
	}
};

/* A whole warp's, though one thread issues: warps know how to agree on the work. */
template <class C>
__device__ __forceinline__ void fa_sm90_load(const struct fa_cuda_attention &args,
                                             const struct fa_cuda_maps &maps, uint32_t shared)
{
	const uint64_t keep = fa_tma_policy_keep(), once = fa_tma_policy_once();
	struct fa_sm90_place<C::STAGES> k, v;
	struct fa_sm90_place<C::Q_SLOTS> q;
	struct fa_sm90_walk<C> walk(args);
	struct fa_sm90_source<C> now;
	/* V's last tile of a block comes after K's first of the next. */
	int32_t v_column = 0, v_token = 0, v_head = 0, v_entry = 0;
	bool pending = false;

	const auto fetch_k = [&](int32_t token, int32_t head, int32_t entry) {
		fa_mbarrier_wait(shared + C::K_EMPTY + 8 * k.stage, k.parity ^ 1);
		fa_sm90_fetch<C::DIM / C::COLUMN, C::KV_COLUMN>(
			shared + C::K_AT + k.stage * C::K_BYTES, &maps.maps[FA_CUDA_MAP_K],
			shared + C::K_FULL + 8 * k.stage, 0, token, head, entry, keep);
		k.advance();
	};
	const auto fetch_v = [&](void) {
		fa_mbarrier_wait(shared + C::V_EMPTY + 8 * v.stage, v.parity ^ 1);
		fa_sm90_fetch<C::DIM_V / C::COLUMN, C::KV_COLUMN>(
			shared + C::V_AT + v.stage * C::V_BYTES, &maps.maps[FA_CUDA_MAP_V],
			shared + C::V_FULL + 8 * v.stage, v_column, v_token, v_head, v_entry, keep);
		v.advance();
	};

#pragma unroll 1
	while (now.next(args, walk)) {
#pragma unroll 1
		for (int group = 0; group < C::GROUPS; group++) {
			fa_mbarrier_wait(shared + C::Q_EMPTY + 8 * q.stage, q.parity ^ 1);
			fa_sm90_fetch<C::DIM / C::COLUMN, C::Q_COLUMN>(
				shared + C::Q_AT + q.stage * C::Q_BYTES, &maps.maps[FA_CUDA_MAP_Q],
				shared + C::Q_FULL + 8 * q.stage, 0,
				now.q_token + group * C::GROUP_ROWS, now.q_head, now.entry, once);
			q.advance();
		}
		fetch_k(now.token, now.head, now.entry);
		if (pending)
			fetch_v();
		pending = true;
		v_column = now.column;
		v_token = now.token;
		v_head = now.head;
		v_entry = now.entry;
#pragma unroll 1
		for (int32_t i = 1; i < now.count; i++) {
			now.token -= C::KEYS;
			fetch_k(now.token, now.head, now.entry);
			fetch_v();
			v_token = now.token;
		}
	}
	if (pending)
		fetch_v();
}
