/*
 * Decode: attention over pages for few query rows, with bulk copies. Blocks divide the tiles as in
 * sm80/paged_decode.h.
 *
 * One producer warp loads (paged_load.h); groups of four consumer warps take tiles in turn, each
 * warp a strip (paged_decode_tile.h), with maxima, sums and O of its own. Warps merge only at a
 * segment's end (paged_epilogue.h). While a group works on a tile, GROUPS - 1 others arrive.
 */
#pragma once

#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/control.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm90/own_load.h"
#include "kernels/cuda/sm90/paged_append.h"
#include "kernels/cuda/sm90/paged_config.h"
#include "kernels/cuda/sm90/paged_decode_tile.h"
#include "kernels/cuda/sm90/paged_epilogue.h"

#include <stdint.h>

/* Prefetches what a segment's end reads; by a whole warp. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_prefetch_tails(const struct fa_cuda_paged_attention &args,
                             const fa_paged_segment_of<C> &segment)
{
	const uint32_t n = max(segment.split.n_suffixes, segment.item.row_blocks);

	if (segment.split.suffixes == FA_CUDA_PAGED_NO_SUFFIX)
		return;
#pragma unroll 1
	for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
		fa_prefetch(args.suffixes + segment.split.suffixes + i);
}

template <class C> struct fa_sm90_paged_one_atom : C {
	static constexpr int ATOMS = 1;
};

template <class C>
__device__ __forceinline__ void
fa_sm90_paged_one_atom_tiles(struct fa_warp_rows<C> &rows,
                             const struct fa_cuda_paged_attention &args,
                             const struct fa_cuda_paged_item &item, const fa_sm90_paged_q<C> &q,
                             const struct fa_paged_unmasked &clear, uint32_t shared,
                             uint32_t rows_info, int32_t end, struct fa_sm90_paged_cursor &at)
{
	using F = struct fa_sm90_paged_one_atom<C>;
	static_assert(!C::Q_IN_REGISTERS, "Q is in shared memory, so both atom counts share it");
	const struct fa_sm90_paged_q<F> first = {
		q.at
	};
	struct fa_warp_rows<F> one;

	fa_warp_clear<F>(one);
	fa_sm90_paged_tiles<F>(one, args, item, first, clear, shared, rows_info, end, at);
	fa_warp_clear<C>(rows);
#pragma unroll
	for (int r = 0; r < 2; r++) {
		rows.offset[r] = one.offset[r];
		rows.sum[r] = one.sum[r];
	}
#pragma unroll
	for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			rows.out[0][j][e] = one.out[0][j][e];
}

template <class C>
__device__ __forceinline__ void fa_sm90_paged_compute(const struct fa_cuda_paged_attention &args,
                                                      char *shared_memory,
                                                      fa_paged_segment_of<C> &segment)
{
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t group = C::GROUPS == 1 ? 0 : warp / C::TILE_WARPS;
	const uint32_t rows_info = C::ROWS_INFO + warp * C::ROWS * 32;
	fa_sm90_paged_q<C> q;
	struct fa_sm90_paged_cursor at = { 0, group, 0 };
	/* Number of the segment's tiles before this warp's next one. With SETMAXNREG: where the
	 * segment begins in the ring, modulo two rounds. */
	int32_t before = C::SETMAXNREG ? 0 : (int32_t)group;
	bool begun = false;
	/* Registers are few, so the segment is kept in shared memory. */
	fa_paged_segment_of<C> *const stashed =
		(fa_paged_segment_of<C> *)(shared_memory + C::WALK_AT) + warp;

	static_assert(!C::STASHES_WALK || sizeof(segment) <= 128,
	              "a walk fits its place in WALK_AT");
	do {
		const struct fa_cuda_paged_item &item = C::STASHES_WALK ? stashed->item
		                                                        : segment.item;
		const int32_t end = segment.end;
		struct fa_sm90_paged_append<C> append;
		struct fa_warp_rows<C> rows;
		bool again = false;

		if constexpr (C::SPLIT_ITEMS)
			again = segment.again;
		if constexpr (C::APPENDS)
			append.begin(args, segment);
		if (!again) {
			q.load(args, segment, shared);
			for (uint32_t i = lane; i < C::ROWS; i += 32)
				((struct fa_paged_row *)(shared_memory + rows_info))[i] =
					fa_sm90_paged_fact_of<C>(args, segment, i);
			__syncwarp();
		}
		if constexpr (C::SPLIT_ITEMS)
			if (warp == 0)
				fa_sm90_paged_prefetch_tails<C>(args, segment);
		/* Thread 32, because thread 0 waits for a fence. */
		fa_sm90_paged_segment_begin<C>(args, segment, shared_memory, begun ? 0 : 32);
		if (!begun) {
			if constexpr (!C::SPLIT_ITEMS)
				fa_sm90_paged_clear_partials<C>(args);
			fa_barrier_sync(C::INIT_COMPUTE, C::INIT_COMPUTE_THREADS);
			fa_sm90_paged_fence_partials<C>(args);
		}
		begun = true;
		if constexpr (C::APPENDS)
			append.end(args, segment);

		if (C::SETMAXNREG) {
			/* A unit's tiles always begin with group 0. */
			const uint32_t ring = (uint32_t)before + group;

			at.stage = ring % C::STAGES;
			at.parity = ring / C::STAGES % 2;
			at.token = segment.begin + group * FA_CUDA_PAGED_TILE;
		} else {
			at.token = segment.begin + before * FA_CUDA_PAGED_TILE;
		}

		const struct fa_paged_unmasked clear = fa_paged_unmasked_of<C>(args, segment.item,
		                                                               shared + rows_info);

		if constexpr (C::STASHES_WALK)
			*stashed = segment;

		if (C::ONE_ATOM && segment.rows(args, C::ROWS) <= 16) {
			if constexpr (C::ONE_ATOM)
				fa_sm90_paged_one_atom_tiles<C>(rows, args, item, q, clear, shared,
				                                shared + rows_info, end, at);
		} else {
			fa_warp_clear<C>(rows);
			fa_sm90_paged_tiles<C>(rows, args, item, q, clear, shared,
			                       shared + rows_info, end, at);
		}
		if constexpr (C::STASHES_WALK)
			segment = *stashed;

		const int32_t tiles = (segment.end - segment.begin + FA_CUDA_PAGED_TILE - 1) /
		                      FA_CUDA_PAGED_TILE;

		if (C::SETMAXNREG)
			before = (before + tiles) % (2 * C::STAGES);
		else if (C::GROUPS > 1)
			before = (at.token - segment.begin) / FA_CUDA_PAGED_TILE - tiles;
		fa_sm90_paged_segment_end<C>(
			args, segment, rows, shared_memory,
			(const struct fa_paged_row *)(shared_memory + rows_info));
	} while (segment.next(args));
}

/* EARLY_LOADS: the common start of all warps. Until fa_await_launch_ahead() it reads only the plan,
 * which was complete before that launch began. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_start(const struct fa_cuda_paged_attention &args,
                                                    uint32_t shared,
                                                    fa_paged_segment_of<C> &segment)
{
	if (threadIdx.x < 32) {
		fa_sm90_paged_make_barriers<C>(shared, 0);
		fa_barrier_arrive(C::INIT_LOADER, 64);
	}
	segment.start(args, blockIdx.x);
	fa_await_launch_ahead();
	if (threadIdx.x / 32 == C::WARPS) {
		fa_barrier_sync(C::INIT_LOADER, 64);
		if (fa_sm90_paged_early_tiles<C>(args, segment) > 0)
			fa_sm90_paged_load_early<C>(args, segment, shared);
	}
}

template <class C>
__device__ __forceinline__ void fa_sm90_paged_decode(const struct fa_cuda_paged_attention &args,
                                                     const struct fa_cuda_maps *maps = NULL)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const uint32_t shared = fa_shared_address(shared_memory);
	fa_paged_segment_of<C> segment;

	/* Instantiated for each role: one for all takes too many registers (d64, pieces). */
	const auto start = [&]() {
		if constexpr (!C::EARLY_LOADS) {
			segment.start(args, blockIdx.x);
			fa_await_launch_ahead();
		}
	};

	if constexpr (C::EARLY_LOADS)
		fa_sm90_paged_start<C>(args, shared, segment);
	if constexpr (C::SETMAXNREG) {
		if (__shfl_sync(~0u, threadIdx.x / 128, 0) == C::GROUPS) {
			fa_setmaxnreg_dec<FA_SM90_PAGED_PRODUCER_REGISTERS>();
			if (threadIdx.x < C::JOINED + 32) {
				start();
				fa_sm90_load<C>(args, shared, segment, maps);
			}
		} else {
			fa_setmaxnreg_inc<FA_SM90_PAGED_CONSUMER_REGISTERS>();
			start();
			fa_sm90_paged_compute<C>(args, shared_memory, segment);
			/* The producer may have exited. */
			fa_done_behind(args.attention.done, 0, C::JOINED);
		}
	} else {
		if (threadIdx.x >= C::JOINED) {
			start();
			fa_sm90_load<C>(args, shared, segment, maps);
		} else {
			start();
			fa_sm90_paged_compute<C>(args, shared_memory, segment);
		}
		fa_done(args.attention.done);
	}
}
