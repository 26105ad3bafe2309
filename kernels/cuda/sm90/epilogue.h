/*
 * Divides a block's O by the sums, stores O and the LSE. O goes from registers to global memory,
 * which leaves shared memory to Q, K and V.
 */
#pragma once

#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/out_rows.h"
#include "kernels/cuda/sm90/packed_share.h"
#include "kernels/cuda/sm90/packed_source.h"
#include "kernels/cuda/sm90/softmax.h"
#include "kernels/cuda/sm90/tile_range.h"

#include <stdint.h>

template <class C>
__device__ __forceinline__ struct fa_work
fa_sm90_work_of(const typename C::ARGS &all, const typename C::SOURCE::BLOCK &block, uint32_t group)
{
	if constexpr (C::PACKED)
		return C::SOURCE::template work_of<C>(all, block, group);
	else
		return C::SOURCE::work_of(all, block);
}

/* Returns what recompute.h must check: with PACKED the warp's rows, as bits; else whether this
 * thread stored such a value. With PACKED, @out and @sums may change. */
template <class C>
__device__ __forceinline__ typename C::CHECK
fa_sm90_epilogue(fa_sm90_out_rows<C> &out, struct fa_sm90_sums &sums, const typename C::ARGS &all,
                 const typename C::SOURCE::BLOCK &block, uint32_t group)
{
	const struct fa_cuda_attention &args = C::SOURCE::attention(all);
	const struct fa_work work = fa_sm90_work_of<C>(all, block, group);

	if constexpr (C::PACKED) {
		const struct fa_sm90_unit_parts of = fa_sm90_unit_parts_of<C>(
			all, fa_sm90_block_index<C>(), group);

		if (of.parts > 1) {
			if constexpr (C::SOURCE::SUFFIXES)
				fa_sm90_packed_forget<C>(out, sums, all, work);
			if (all.join_wait_ns)
				return fa_sm90_share_join<C>(out, sums, all, group, of, work);
			/* A warp without rows has nothing to hand over. */
			if (work.row + (int32_t)fa_sm90_warp_row() >= work.n_q)
				return 0;
			if (!fa_sm90_unit_join<C>(out, sums, all, of))
				return 0;
		}
	}

	const int32_t first_row = work.row;
	const int32_t warp_row = first_row + threadIdx.x % 128 / 32 * 16;
	bool nonfinite = false;
	float scale[2];

#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int32_t row = warp_row + r * 8 + threadIdx.x % 32 / 4;
		float sum = sums.sum[r], offset = sums.offset[r];

		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		scale[r] = fa_sm90_row_scale<C>(fa_sm90_sink<C>(args, work.head), offset, sum);
		nonfinite |= (C::BAND || C::FIXED_MAX) &&
		             fa_sm90_is_nonfinite<C>(out, scale[r], r) && row < work.n_q;
		if (args.lse && threadIdx.x % 4 == 0 && work.slice == 0 && row < work.n_q)
			args.lse[work.sequence * args.lse_stride_batch +
			         ((int64_t)work.first_q + row) * args.lse_stride_token +
			         work.head * args.lse_stride_head] =
				sum == 0 ? -INFINITY : (fa_lg2(sum) - offset) * 0.693147181f;
	}
	fa_sm90_store_out<C>(out, scale, args, work, first_row);
	if constexpr (C::PACKED)
		return __any_sync(~0u, nonfinite) ? 0xffff : 0;
	return nonfinite;
}

/* Stores zeros and the LSE for a group's rows, from work.row on, that see no key. */
template <class C>
__device__ __forceinline__ void fa_sm90_epilogue_empty(const struct fa_cuda_attention &args,
                                                       const struct fa_work &work)
{
	constexpr int32_t chunks = C::DIM_V / 8;
	const int32_t width = args.head_dim_v - work.slice * C::DIM_V;

#pragma unroll 1
	for (int32_t i = threadIdx.x % 128; i < C::GROUP_ROWS * chunks; i += 128) {
		const int32_t row = work.row + i / chunks, chunk = i % chunks;

		if (row >= work.n_q)
			return;
		if (chunk * 8 < width)
			*(uint4 *)(fa_sm90_out_row<C>(args, work, row) +
			           chunk * 16) = make_uint4(0, 0, 0, 0);
		if (args.lse && chunk == 0 && work.slice == 0)
			args.lse[work.sequence * args.lse_stride_batch +
			         ((int64_t)work.first_q + row) * args.lse_stride_token +
			         work.head * args.lse_stride_head] =
				fa_sm90_sink<C>(args, work.head) * 0.693147181f;
	}
}
