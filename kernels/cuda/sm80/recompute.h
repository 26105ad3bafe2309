/*
 * The second pass over a block's keys, for blocks that met an infinity or NaN: it keeps rows
 * unchanged by keys that they do not see (warp_product.h). One buffer, 16 keys at a time, nothing
 * in flight.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/swizzle.h"
#include "kernels/cuda/common/warp_pair.h"
#include "kernels/cuda/common/warp_product.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm80/config.h"

#include <stdint.h>

/* Copies ROWS rows of D elements through registers; missing rows, and columns past @width, become
 * zero. */
template <int ROWS, int D, int THREADS, class FROM>
__device__ __forceinline__ void fa_sm80_copy(uint32_t tile, const FROM &rows, int32_t width)
{
#pragma unroll 1
	for (int i = fa_thread_index(); i < ROWS * (D / 2); i += THREADS) {
		const int32_t row = i / (D / 2), pair = i % (D / 2);
		uint32_t value = 0;

		if (rows.has(row) && pair * 2 < width) {
			const uint16_t *element = (const uint16_t *)rows.at(row) + pair * 2;

			value = element[0] | (uint32_t)element[1] << 16;
		}
		fa_st_shared(tile + fa_swizzle<D>::offset(row, pair / 4) + pair % 4 * 4, value);
	}
}

template <class C>
__device__ __forceinline__ void fa_sm80_copy_kv(const typename C::SOURCE::ARGS &given, uint32_t kv,
                                                int32_t key)
{
	const struct fa_cuda_attention &args = C::SOURCE::attention(given);
	const typename C::SOURCE::WORK work = C::SOURCE::work(given, C::ROWS);

	fa_sm80_copy<C::KEYS, C::DIM, C::THREADS>(
		kv, C::SOURCE::template k_rows<C>(given, work, key), args.head_dim);
	fa_sm80_copy<C::KEYS, C::DIM_V, C::THREADS>(kv + C::K_BYTES,
	                                            C::SOURCE::template v_rows<C>(given, work, key),
	                                            args.head_dim_v - work.slice * C::DIM_V);
}

template <class C>
__device__ __forceinline__ void fa_sm80_recompute_keys(struct fa_warp_rows<C> &rows,
                                                       const typename C::SOURCE::ARGS &given,
                                                       uint32_t q_tile, int32_t key, int32_t first)
{
	const struct fa_cuda_attention &args = C::SOURCE::attention(given);
	const typename C::SOURCE::WORK work = C::SOURCE::work(given, C::ROWS);
	const uint32_t kv = q_tile + C::Q_BYTES;
	const uint32_t thread = fa_thread_index(), warp = thread / 32, lane = thread % 32;
	const int32_t warp_row = warp / C::SPLIT * C::WARP_ROWS;
	const struct fa_warp_pair<C> pair(kv + C::STAGES * (C::K_BYTES + C::V_BYTES), warp);
	const typename C::LOGITS logits(args, work.head);
	const int32_t lane_key = key + first + (int32_t)(pair.half * C::WARP_KEYS + lane % 4 * 2);
	const struct fa_warp_visibility<C> sight = {
		.key = lane_key - (int32_t)(work.row + warp_row + work.diagonal + lane / 4),
		.start = C::SOURCE::start(work) - lane_key, .rest = work.n_k - lane_key,
		.left = args.window_left, .right = args.window_right,
	};
	const uint32_t q = q_tile + fa_swizzle<C::DIM>::offset(warp_row + lane % 16, lane / 16);
	const uint32_t k = kv + fa_swizzle<C::DIM>::offset(pair.half * C::WARP_KEYS + first +
	                                                           lane % 8 + lane / 16 * 8,
	                                                   lane / 8 % 2);
	const uint32_t v = kv + C::K_BYTES +
	                   fa_swizzle<C::DIM_V>::offset(first + lane % 16,
	                                                pair.half * 4 + lane / 16);
	float dots[C::ATOMS][2][4];

	fa_warp_dots<C, 1>(dots, q, k);
	logits.apply(dots, sight.key);
	fa_warp_mask<C>(dots, sight);
	fa_warp_raise_max<C>(rows, dots, logits.factor(), pair);
	fa_warp_accumulate<C, true>(rows, dots, logits.factor(), v, pair, sight);
}

/* As fa_sm80_mainloop(). Shared memory must be free. */
template <class C>
__device__ __forceinline__ void fa_sm80_recompute(struct fa_warp_rows<C> &rows,
                                                  const typename C::SOURCE::ARGS &given,
                                                  uint32_t q_tile)
{
	int32_t key, begin;

	fa_warp_clear<C>(rows);
	{
		const struct fa_cuda_attention &args = C::SOURCE::attention(given);
		const typename C::SOURCE::WORK work = C::SOURCE::work(given, C::ROWS);
		const int32_t last_row = min(work.row + C::ROWS, work.n_q) - 1;
		const int32_t end = min(work.n_k, last_row + work.diagonal + args.window_right + 1);

		begin = max(C::SOURCE::start(work), work.row + work.diagonal - args.window_left);
		key = end > begin ? (end - 1) / C::KEYS * C::KEYS : -1;
		const struct fa_sm80_tensor_rows q = { fa_work_base(args.q, work.sequence,
			                                            work.first_q, work.head) +
			                                       work.row * args.q.stride_token,
			                               args.q.stride_token, work.n_q - work.row };

		fa_sm80_copy<C::ROWS, C::DIM, C::THREADS>(q_tile, q, args.head_dim);
	}

#pragma unroll 1
	for (; key >= 0 && key + C::KEYS > begin; key -= C::KEYS) {
		__syncthreads(); /* all threads: the previous tile is free */
		fa_sm80_copy_kv<C>(given, q_tile + C::Q_BYTES, key);
		__syncthreads(); /* all threads: this tile is written */
#pragma unroll 1
		for (int32_t first = 0; first < C::WARP_KEYS; first += 16)
			fa_sm80_recompute_keys<C>(rows, given, q_tile, key, first);
	}
	__syncthreads(); /* all threads: also if there was no key */
}
