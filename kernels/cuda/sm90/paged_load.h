/*
 * The loading warp's part: it walks the block's range of tiles (sm80/paged_walk.h) as far
 * ahead as there is room. A tile of 64 tokens is eight bulk copies, of 16 tokens of K or of V
 * each, which lie in one page; a lane issues each. Slots of pages are looked up for eight
 * tiles at a time, a lane for each 16 tokens, while the copies of the eight before are
 * issued. Of the last 16 tokens only those are copied that are there, and no slot past them
 * is looked up.
 */
#pragma once

#include "kernels/cuda/ptx/bulk.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/sm80/paged_walk.h"
#include "kernels/cuda/sm90/paged_config.h"

#include <stdint.h>

/* Up to eight tiles of a segment. */
struct fa_sm90_paged_batch {
	const char *k, *v;  /* the head's first row of slot 0 */
	uint64_t at;        /* from there: this lane's 16 tokens */
	int32_t token, end; /* tokens of the batch */
	bool shared;        /* others will read the same */
};

template <class C>
__device__ __forceinline__ bool fa_sm90_paged_look_up(const struct fa_cuda_paged_attention &args,
                                                      struct fa_paged_walk<C::PIECES> &walk,
                                                      int32_t &token,
                                                      struct fa_sm90_paged_batch &ret_batch)
{
	const struct fa_cuda_pages &pages = args.pages;
	const uint32_t lane = threadIdx.x % 32;

#pragma unroll 1
	while (token >= walk.end) {
		if (!walk.next(args))
			return false;
		token = walk.begin;
	}

	const uint64_t head = (uint64_t)walk.kv_head(args) * pages.page_strips *
	                      (FA_CUDA_PAGED_STRIP * C::PITCH);
	const uint32_t strip = token / FA_CUDA_PAGED_STRIP + lane;

	ret_batch.k = pages.k + head;
	ret_batch.v = pages.v + head;
	ret_batch.at = 0;
	ret_batch.shared = walk.item.row_blocks > 1;
	if ((int32_t)(strip * FA_CUDA_PAGED_STRIP) < walk.end) {
		const uint32_t page = (uint32_t)(strip * pages.page_magic >> 32);
		const uint32_t at = walk.item.table_start + page;
		const uint32_t slot =
			C::SMALL ? ((const struct fa_cuda_paged_small_attention &)args).table[at]
				 : pages.table[at];

		ret_batch.at = (uint64_t)slot * 256 + (strip - page * pages.page_strips) *
		                                              (FA_CUDA_PAGED_STRIP * C::PITCH);
	}
	ret_batch.token = token;
	ret_batch.end = min(walk.end, token + 8 * FA_CUDA_PAGED_TILE);
	token = ret_batch.end;
	return true;
}

/* A whole warp's. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_load(const struct fa_cuda_paged_attention &args,
                                                   uint32_t shared)
{
	const uint32_t lane = threadIdx.x % 32, quarter = lane % 4, is_v = lane / 4 % 2;
	const uint32_t place = is_v * C::K_BYTES + quarter * C::QUARTER;
	const uint64_t once = fa_bulk_policy_once(), normal = fa_bulk_policy_normal();
	struct fa_sm90_paged_batch batch, next;
	struct fa_paged_walk<C::PIECES> walk;
	uint32_t stage = 0, parity = 1;
	int32_t token;
	bool more;

	walk.start(args, blockIdx.x);
	token = walk.begin;
	more = fa_sm90_paged_look_up<C>(args, walk, token, next);
	if (lane == 0) {
		for (int i = 0; i < C::STAGES; i++) {
			fa_mbarrier_init(shared + C::FULL + 8 * i, 1);
			fa_mbarrier_init(shared + C::EMPTY + 8 * i, C::WARPS);
		}
		fa_mbarrier_init_fence();
	}
	__syncwarp();
	fa_barrier_arrive(C::BEGUN, C::THREADS);

#pragma unroll 1
	while (more) {
		batch = next;
		more = fa_sm90_paged_look_up<C>(args, walk, token, next);

		const char *const from = is_v ? batch.v : batch.k;
		uint32_t source = quarter; /* the lane that knows where the tile's quarter is */

#pragma unroll 1
		for (; batch.token < batch.end; batch.token += FA_CUDA_PAGED_TILE) {
			const int32_t there = min(batch.end - batch.token, FA_CUDA_PAGED_TILE);
			const int32_t rows = min(there - (int32_t)quarter * 16, 16);
			const uint32_t full = shared + C::FULL + 8 * stage;
			const uint64_t at = __shfl_sync(~0u, batch.at, source);

			fa_mbarrier_wait(shared + C::EMPTY + 8 * stage, parity);
			if (lane == 0)
				fa_mbarrier_arrive_expect(full, 2 * there * C::PITCH);
			__syncwarp();
			if (lane < 8 && rows > 0)
				fa_bulk_load(shared + C::RING + stage * C::STAGE_BYTES + place,
				             from + at, rows * C::PITCH, full,
				             batch.shared ? normal : once);
			source += 4;
			if (++stage == C::STAGES) {
				stage = 0;
				parity ^= 1;
			}
		}
	}
}
