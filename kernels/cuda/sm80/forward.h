/*
 * Forward attention on mma.sync, for fp16 and bf16. A block computes ROWS query rows of one head;
 * each warp, or pair of warps, owns WARP_ROWS of them. The config's SOURCE loads K and V
 * (source.h), last tile first, by cp.async in STAGES buffers. At the top of a tile each thread
 * waits for its own copies, then one barrier (all threads) makes the tile visible and frees the
 * previous buffer.
 *
 * A pair (SPLIT 2) has named barrier 1 + its index, 64 threads, twice per tile: to agree whether to
 * raise the maxima, and when P is written. Raising takes one more, the end two. Where rows see
 * different keys, a block that wrote an infinity or NaN recomputes its rows (recompute.h), last, so
 * that the usual case pays no registers.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/logits.h"
#include "kernels/cuda/common/tile.h"
#include "kernels/cuda/common/warp_pair.h"
#include "kernels/cuda/common/warp_product.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm80/config.h"
#include "kernels/cuda/sm80/recompute.h"
#include "kernels/cuda/sm80/source.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* O is not divided by the sums yet. */
template <class C>
__device__ __forceinline__ void
fa_sm80_mainloop(struct fa_warp_rows<C> &rows, const typename C::SOURCE::ARGS &given,
                 const typename C::SOURCE::WORK &work, uint32_t q_tile)
{
	const struct fa_cuda_attention &args = C::SOURCE::attention(given);
	const uint32_t kv_tiles = q_tile + C::Q_BYTES;
	constexpr uint32_t stage_bytes = C::K_BYTES + C::V_BYTES;
	const uint32_t lane = threadIdx.x % 32;
	const int32_t warp_row = threadIdx.x / 32 / C::SPLIT * C::WARP_ROWS;
	const struct fa_warp_pair<C> pair(kv_tiles + C::STAGES * stage_bytes, threadIdx.x / 32);

	int32_t begin = 0, end = work.n_k;
	if (C::BAND) {
		const int32_t last_row = min(work.row + C::ROWS, work.n_q) - 1;

		begin = max(C::SOURCE::start(work), work.row + work.diagonal - args.window_left);
		end = min(end, last_row + work.diagonal + args.window_right + 1);
	}
	const int32_t first_tile = begin / C::KEYS;
	const int32_t tile = end > begin ? (end - 1) / C::KEYS : first_tile - 1;
	/* The tile's last existing key, relative to the first tile's start; -1: no tile is left.
	 * Only the first tile computed can have keys past the end. */
	int32_t last = tile < first_tile
	                       ? -1
	                       : min(work.n_k, (tile + 1) * C::KEYS) - first_tile * C::KEYS - 1;

	const struct fa_loader<C::ROWS, C::DIM, C::THREADS, C::NEAR> q_loader(
		fa_work_base(args.q, work.sequence, work.first_q, work.head), args.q.stride_token,
		work.row, args.head_dim);
	auto k_loader = C::SOURCE::template k<C>(given, work, tile * C::KEYS);
	auto v_loader = C::SOURCE::template v<C>(given, work, tile * C::KEYS, k_loader);
	const bool elements = C::LOGITS::any_alignment && !args.aligned;

	if (last >= 0) {
		const int32_t keys = last % C::KEYS + 1;
		const uint32_t kv = kv_tiles + (last / C::KEYS & 1) * stage_bytes;

		if (elements) {
			q_loader.load_elements(q_tile, work.n_q - work.row);
			k_loader.load_elements(kv, keys);
			v_loader.load_elements(kv + C::K_BYTES, keys);
		} else {
			q_loader.load_part(q_tile, work.n_q - work.row);
			k_loader.load_part(kv, keys);
			v_loader.load_part(kv + C::K_BYTES, keys);
		}
		fa_cp_async_commit();
	}

	/* This lane's ldmatrix addresses: of Q, and of K and V within a stage. */
	const uint32_t q_lane = q_tile +
	                        fa_swizzle<C::DIM>::offset(warp_row + lane % 16, lane / 16);
	const uint32_t k_lane = fa_swizzle<C::DIM>::offset(
		pair.half * C::WARP_KEYS + lane % 8 + lane / 16 * 8, lane / 8 % 2);
	const uint32_t v_lane = C::K_BYTES +
	                        fa_swizzle<C::DIM_V>::offset(lane % 16, pair.half * 4 + lane / 16);

	const typename C::LOGITS logits(args, work.head);
	const float factor = logits.factor();

	fa_warp_clear<C>(rows);

	/* Relative to the warp's first row, which saves registers. */
	const int32_t origin = C::BAND ? work.row + warp_row + work.diagonal : 0;
	int32_t key = tile * C::KEYS - origin;

#pragma unroll 1
	for (; last >= 0; last = last / C::KEYS * C::KEYS - 1, key -= C::KEYS) {
		const uint32_t kv = kv_tiles + (last / C::KEYS & 1) * stage_bytes;

		fa_cp_async_wait<0>();
		__syncthreads();
		if (last >= C::KEYS) {
			const uint32_t next = kv_tiles + (~(last / C::KEYS) & 1) * stage_bytes;

			k_loader.retreat();
			v_loader.retreat();
			if (elements) {
				k_loader.load_elements(next, C::KEYS);
				v_loader.load_elements(next + C::K_BYTES, C::KEYS);
			} else {
				k_loader.load(next);
				v_loader.load(next + C::K_BYTES);
			}
			fa_cp_async_commit();
		}

		if (C::BAND &&
		    (key >= C::WARP_ROWS + args.window_right || key + C::KEYS <= -args.window_left))
			continue;

		const int32_t lane_key = pair.half * C::WARP_KEYS + lane % 4 * 2;
		/* Keys that the source hides: only in the tile computed last. */
		const int32_t hidden = last < C::KEYS ? C::SOURCE::hidden(k_loader) : 0;
		const struct fa_warp_visibility<C> sight = {
			.key = key + lane_key - (int32_t)(lane / 4), .start = hidden - lane_key,
			.rest = last % C::KEYS + 1 - lane_key, .left = args.window_left,
			.right = args.window_right,
		};
		float dots[C::ATOMS][C::WARP_KEYS / 8][4];

		fa_warp_dots<C, C::DIM <= 256 ? C::DIM / 16 : 4>(dots, q_lane, kv + k_lane);
		logits.apply(dots, sight.key);
		if (last % C::KEYS != C::KEYS - 1 ||
		    (C::BAND && (key + C::KEYS - 1 > args.window_right ||
		                 key < C::WARP_ROWS - 1 - args.window_left ||
		                 (C::SOURCE::STARTS && hidden > 0))))
			fa_warp_mask<C>(dots, sight);
		fa_warp_raise_max<C>(rows, dots, factor, pair);
		fa_warp_accumulate<C, false>(rows, dots, factor, kv + v_lane, pair, sight);
	}
}

/* Writes O, divided by the sums and through these rows' part of Q's shared memory, and the LSE.
 * True: this thread wrote an infinity or NaN that may be wrong. */
template <class C>
__device__ __forceinline__ bool fa_sm80_finish(struct fa_warp_rows<C> &rows,
                                               const typename C::SOURCE::ARGS &given,
                                               uint32_t shared, uint32_t thread)
{
	const struct fa_cuda_attention &args = C::SOURCE::attention(given);
	const uint32_t warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
	const struct fa_warp_pair<C> pair(
		shared + C::Q_BYTES + C::STAGES * (C::K_BYTES + C::V_BYTES), warp);
	const uint32_t tile = shared + warp / C::SPLIT * C::WARP_ROWS * C::DIM * 2;
	const typename C::SOURCE::WORK work = C::SOURCE::work(given, C::ROWS);
	const int32_t first_row = work.row + warp / C::SPLIT * C::WARP_ROWS;
	float sink = -INFINITY;

	if (C::LOGITS::any_sink && args.sinks)
		sink = args.sinks[work.head] * 1.44269504f;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 1);
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 2);
	}
	if (C::SPLIT > 1) {
		float others[2 * C::ATOMS];

		/* Then both warps are done with Q. */
		pair.swap_rows(others, rows.sum);
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
			rows.sum[r] += others[r];
	} else {
		__syncwarp();
	}
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const int32_t row = r * 8 + g;
		float sum = rows.sum[r], max = -rows.offset[r], scale;

		scale = sum == 0 ? 0 : 1 / sum;
		if (C::LOGITS::any_sink && sink != -INFINITY) {
			const float top = fmaxf(max, sink);
			const float shrink = fa_ex2(max - top);

			sum = sum * shrink + fa_ex2(sink - top);
			scale = shrink / sum;
			max = top;
		}
#pragma unroll
		for (int j = 0; j < C::WARP_DIM_V / 8; j++)
			fa_st_shared(
				tile +
					fa_swizzle<C::DIM_V>::offset(row, pair.chunk(j) +
			                                                          4 * pair.half) +
					t * 4,
				fa_pack<typename C::T>(rows.out[r / 2][j][r % 2 * 2] * scale,
			                               rows.out[r / 2][j][r % 2 * 2 + 1] * scale));
		if (args.lse && t == 0 && pair.half == 0 && work.slice == 0 &&
		    first_row + row < work.n_q)
			args.lse[work.sequence * args.lse_stride_batch +
			         ((int64_t)work.first_q + first_row + row) * args.lse_stride_token +
			         work.head * args.lse_stride_head] =
				sum == 0 ? -INFINITY : (max + fa_lg2(sum)) * 0.693147181f;
	}
	if (C::SPLIT > 1)
		fa_barrier_sync(pair.barrier, 64);
	else
		__syncwarp();

	constexpr int store_rows = C::WARP_ROWS / C::SPLIT;

	return fa_store_rows<store_rows, C::DIM_V, C::LOGITS::any_alignment, C::BAND,
	                     typename C::T>(
		fa_thread_index() % 32, tile + pair.half * store_rows * C::DIM_V * 2,
		(char *)fa_work_base(args.out, work.sequence, work.first_q, work.head) +
			work.slice * C::DIM_V * 2,
		args.out.stride_token, first_row + pair.half * store_rows, work.n_q,
		args.head_dim_v - work.slice * C::DIM_V, args.aligned);
}

template <class C>
__device__ __forceinline__ void fa_sm80_forward(const typename C::SOURCE::ARGS &given)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const uint32_t shared = fa_shared_address(shared_memory);
	bool broken;

	{
		const typename C::SOURCE::WORK work = C::SOURCE::work(given, C::ROWS);
		struct fa_warp_rows<C> rows;

		if (work.row >= work.n_q)
			return;
		fa_sm80_mainloop<C>(rows, given, work, shared);
		broken = fa_sm80_finish<C>(rows, given, shared, threadIdx.x);
	}
	if constexpr (C::BAND) {
		/* All threads: shared memory is no longer read. */
		if (__syncthreads_or(broken)) {
			struct fa_warp_rows<C> rows;

			fa_sm80_recompute<C>(rows, given, shared);
			/* Reads the index again: the main loop has no registers for the
			 * addresses. */
			fa_sm80_finish<C>(rows, given, shared, fa_thread_index());
		}
	}
}
