/*
 * Producer warps of decode over a client's own pages. Pages of whole strips are loaded as the
 * pool's (paged_load.h), by maps of the client's strides unless rows are adjacent. Of others, which
 * may have any number of tokens, each row of K and of V is a copy; a lane has two tokens of a tile.
 */
#pragma once

#include "kernels/cuda/common/own.h"
#include "kernels/cuda/sm90/paged_load.h"

#include <stdint.h>

/* A tile of 64 tokens of a KV head; where this lane's tokens are. */
struct fa_sm90_own_tile {
	uint32_t page[2], in_page[2];
	uint32_t head;
	int32_t there; /* tokens */
	bool reread;   /* other blocks read the same tile */
};

/* The loader's next tile, from @token on; false: none. */
template <class C>
__device__ __forceinline__ bool fa_sm90_own_find(const struct fa_cuda_paged_attention &args,
                                                 fa_paged_segment_of<C> &segment, int32_t &token,
                                                 struct fa_sm90_own_tile &ret_tile)
{
#pragma unroll 1
	while (token >= segment.end) {
		const int32_t behind = C::LOADERS == 1
		                               ? 0
		                               : token - fa_sm90_paged_tiles_end<C>(segment);

		if (!segment.next(args))
			return false;
		token = segment.begin + behind;
	}
	ret_tile.there = min(segment.end - token, FA_CUDA_PAGED_TILE);
	ret_tile.reread = segment.item.row_blocks > 1;
	ret_tile.head = segment.kv_head(args);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int32_t at = token + i * 32 + (int32_t)(threadIdx.x % 32);

		/* Hidden tokens need no entry; any row serves. */
		ret_tile.page[i] = ret_tile.in_page[i] = 0;
		if (at >= (int32_t)segment.item.begin && at < segment.end)
			ret_tile.page[i] = fa_own_page(args, segment.item.table_start, at,
			                               ret_tile.in_page[i]);
	}
	token += C::LOADERS * FA_CUDA_PAGED_TILE;
	return true;
}

/* As fa_sm90_paged_load(), row by row. */
template <class C>
__device__ __forceinline__ void fa_sm90_own_load_rows(const struct fa_cuda_paged_attention &args,
                                                      uint32_t shared,
                                                      fa_paged_segment_of<C> &segment)
{
	const struct fa_cuda_own &own = fa_own_of(args);
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t loader = C::LOADERS == 1 ? 0
	                                        : __shfl_sync(~0u, threadIdx.x / 32, 0) - C::WARPS;
	const uint64_t once = fa_bulk_policy_once(), normal = fa_bulk_policy_normal();
	int32_t token = segment.begin + (int32_t)loader * FA_CUDA_PAGED_TILE;
	uint32_t stage = loader, parity = 1;
	struct fa_sm90_own_tile tile, next;
	bool more = fa_sm90_own_find<C>(args, segment, token, next);

	if constexpr (!C::SYNCS_AT_START) {
		fa_sm90_paged_make_barriers<C>(shared, loader);
		fa_barrier_arrive(C::INIT_COMPUTE, C::INIT_COMPUTE_THREADS);
	}
#pragma unroll 1
	while (more) {
		const uint32_t full = shared + C::FULL + 8 * stage;
		const uint32_t to = shared + C::RING + stage * C::STAGE_BYTES + lane * C::PITCH;
		const uint64_t policy = next.reread ? normal : once;

		tile = next;
		/* The next tile's entries arrive while this one's stage becomes free. */
		more = fa_sm90_own_find<C>(args, segment, token, next);
		fa_mbarrier_wait(shared + C::EMPTY + 8 * stage, parity);
		if (lane == 0)
			fa_mbarrier_arrive_expect(full, 2 * tile.there * C::PITCH);
		__syncwarp();
#pragma unroll
		for (int i = 0; i < 2; i++)
			if ((int32_t)lane + i * 32 < tile.there) {
				fa_bulk_load(to + i * 32 * C::PITCH,
				             args.pages.k + tile.page[i] * own.k_page +
				                     tile.in_page[i] * own.k_token +
				                     tile.head * own.k_head,
				             C::PITCH, full, policy);
				fa_bulk_load(to + i * 32 * C::PITCH + C::K_BYTES,
				             args.pages.v + tile.page[i] * own.v_page +
				                     tile.in_page[i] * own.v_token +
				                     tile.head * own.v_head,
				             C::PITCH, full, policy);
			}
		__syncwarp();
		stage += C::LOADERS;
		if (stage >= C::STAGES) {
			stage = loader;
			parity ^= 1;
		}
	}
}

/* One producer warp of any decode. @segment: the block's first. */
template <class C>
__device__ __forceinline__ void fa_sm90_load(const struct fa_cuda_paged_attention &args,
                                             uint32_t shared, fa_paged_segment_of<C> &segment,
                                             const struct fa_cuda_maps *maps)
{
	if constexpr (C::OWN) {
		if (!fa_own_of(args).in_strips && !fa_own_of(args).in_boxes) {
			fa_sm90_own_load_rows<C>(args, shared, segment);
			return;
		}
	}
	fa_sm90_paged_load<C>(args, shared, segment, maps);
}
