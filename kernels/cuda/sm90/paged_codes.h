/*
 * Decode over pages that hold codes of a byte. As paged_decode.h, but converting codes costs time
 * and a tile arrives in half of it: GROUPS of four consumer warps take tiles in turn, each with a
 * producer warp, so GROUPS - 1 tiles arrive while a warp works on one.
 */
#pragma once

#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/common/quantised.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/ptx/control.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm90/own_load.h"
#include "kernels/cuda/sm90/paged_codes_config.h"
#include "kernels/cuda/sm90/paged_codes_q.h"
#include "kernels/cuda/sm90/paged_codes_tile.h"
#include "kernels/cuda/sm90/paged_epilogue.h"

#include <float.h>
#include <stdint.h>

template <class C>
__device__ __forceinline__ void fa_sm90_codes_compute(const struct fa_cuda_paged_attention &args,
                                                      char *shared_memory)
{
	const struct fa_cuda_paged_quantised &quantised = fa_quantised_of(args);
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t quarter = warp % C::TILE_WARPS;
	fa_paged_segment_of<C> segment = fa_sm90_codes_first_walk<C>(shared_memory);
	/* The next tile's stage and parity, uniform across the warp, and the number of the
	 * segment's tiles before it. */
	uint32_t stage = __shfl_sync(~0u, warp / C::TILE_WARPS, 0), parity = 0;
	int32_t before = (int32_t)stage;
	uint32_t segments = 0;

	fa_sm90_paged_fence_partials<C>(args);
	do {
		const struct fa_cuda_paged_item &item = segment.item;
		const uint32_t at_q = shared + C::Q + segments % 2 * C::Q_BYTES;
		const uint32_t rows_info = at_q + C::ROWS_INFO;
		int32_t tile = segment.begin + before * FA_CUDA_PAGED_TILE;
		struct fa_quantised_v_unit<C> unit;
		float factors[2 * C::ATOMS];
		struct fa_warp_rows<C> rows;
		fa_sm90_codes_q<C> q;

		fa_sm90_paged_segment_begin<C>(args, segment, shared_memory);
		fa_warp_clear<C>(rows);
		unit.start(quantised.token_scales ? FLT_MAX : 1);
		fa_mbarrier_wait(shared + C::Q_FULL + segments % 2 * 8, segments / 2 % 2);
		q.load(at_q);
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
			factors[r] = __uint_as_float(
				fa_ld_shared(at_q + C::FACTORS + (lane / 4 + 8 * r) * 4));

		struct fa_paged_unmasked clear = fa_paged_unmasked_of<C>(args, item, rows_info);

		/* Uniform across the warp; saves registers. */
		clear.begin = __shfl_sync(~0u, clear.begin, 0);
		clear.end = __shfl_sync(~0u, clear.end, 0);

#pragma unroll 1
		for (; tile < segment.end; tile += C::GROUPS * FA_CUDA_PAGED_TILE) {
			const int32_t token = tile + (int32_t)quarter * FA_CUDA_PAGED_STRIP;

			fa_mbarrier_wait(shared + C::FULL + 8 * stage, parity);
			if (token < segment.end)
				fa_sm90_codes_strip<C>(args, item, q, factors, rows, unit,
				                       shared + C::RING + stage * C::STAGE_BYTES,
				                       quarter, rows_info, token,
				                       clear.hides(token));
			__syncwarp(); /* the warp is done with the tile */
			if (lane == 0)
				fa_mbarrier_arrive(shared + C::EMPTY + 8 * stage);
			stage += C::GROUPS;
			if (stage >= C::STAGES) {
				stage -= C::STAGES;
				parity ^= 1;
			}
		}
		before = (tile - segment.begin) / FA_CUDA_PAGED_TILE -
		         (segment.end - segment.begin + FA_CUDA_PAGED_TILE - 1) /
		                 FA_CUDA_PAGED_TILE;
		unit.settle(rows, args, segment.kv_head(args));
		fa_sm90_paged_segment_end<C>(
			args, segment, rows, shared_memory,
			(const struct fa_paged_row *)(shared_memory + C::Q +
		                                      segments % 2 * C::Q_BYTES + C::ROWS_INFO));
		__syncwarp(); /* the warp is done with Q and the rows' facts */
		if (lane == 0)
			fa_mbarrier_arrive(shared + C::Q_EMPTY + segments % 2 * 8);
		segments++;
	} while (segment.next(args));
}

/* The preparations are divided among the warps: cold code behind jumps is slow to fetch. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_start(const struct fa_cuda_paged_attention &args,
                                                    char *shared_memory)
{
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

	static_assert(C::STAGES <= 32 && sizeof(fa_paged_segment_of<C>) <= 128,
	              "a lane per stage; a walk fits FIRST_WALK_AT");
	if (warp == C::WARPS) {
		fa_paged_segment_of<C> segment;

		segment.start(args, blockIdx.x);
		if (lane == 0)
			*(fa_paged_segment_of<C> *)(shared_memory + C::FIRST_WALK_AT) = segment;
	} else if (warp == C::WARPS + 1) {
		if (lane < C::STAGES) {
			fa_mbarrier_init(shared + C::FULL + 8 * lane, 1);
			fa_mbarrier_init(shared + C::EMPTY + 8 * lane, C::TILE_WARPS);
			if (lane < 2) {
				fa_mbarrier_init(shared + C::Q_FULL + 8 * lane, 1);
				fa_mbarrier_init(shared + C::Q_EMPTY + 8 * lane, C::WARPS);
			}
			fa_mbarrier_init_fence();
		}
	} else if (warp < C::WARPS) {
		fa_await_launch_ahead();
		fa_sm90_paged_clear_partials<C>(args);
		for (uint32_t i = threadIdx.x; i < 2 * C::Q_BYTES / 16; i += C::JOINED)
			fa_st_shared_v4(shared + C::Q + i * 16, make_uint4(0, 0, 0, 0));
	}
	fa_await_launch_ahead();
	__syncthreads();
}

template <class C>
__device__ __forceinline__ void fa_sm90_codes_decode(const struct fa_cuda_paged_attention &args,
                                                     const struct fa_cuda_maps *maps = NULL)
{
	extern __shared__ __align__(1024) char shared_memory[];

	fa_sm90_codes_start<C>(args, shared_memory);
	if (__shfl_sync(~0u, threadIdx.x / 128, 0) == C::GROUPS) {
		fa_setmaxnreg_dec<C::PRODUCER_REGISTERS>();
		const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

		if (warp < C::WARPS + C::LOADERS) {
			fa_paged_segment_of<C> segment = fa_sm90_codes_first_walk<C>(shared_memory);

			fa_sm90_load<C>(args, fa_shared_address(shared_memory), segment, maps);
		} else if (warp == C::WARPS + C::LOADERS)
			fa_sm90_codes_convert_q<C>(args, shared_memory);
	} else {
		fa_setmaxnreg_inc<C::CONSUMER_REGISTERS>();
		fa_sm90_codes_compute<C>(args, shared_memory);
		/* Producers may have exited. */
		fa_done_behind(args.attention.done, 0, C::JOINED);
	}
}
