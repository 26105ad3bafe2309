/*
 * Recomputes rows whose O is infinite or NaN, one warp per row on CUDA cores:
 *  - an unseen key may hold an infinity or NaN, and 0 times NaN is NaN;
 *  - large V or ALiBi may bring a row beyond fp32, or to nothing (fa_sm90_row_scale()).
 * Other rows stay non-finite; their loop stops as soon as that is certain.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/epilogue.h"
#include "kernels/cuda/sm90/logits.h"
#include "kernels/cuda/sm90/masked_sight.h"
#include "kernels/cuda/sm90/tile_range.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* Keys whose loads are in flight together. */
#define FA_SM90_RECOMPUTE_KEYS 4

/* A lane's elements of a row: one load. */
template <int DIM> struct fa_sm90_lane_elements {
	static constexpr int count = DIM <= 64 ? 2 : DIM <= 128 ? 4 : 8;
};

/* A lane's COUNT elements of a row of @width elements, 0 past its end. Rows are 16-byte aligned
 * and a multiple of 8 elements. */
template <class T, int COUNT>
__device__ __forceinline__ void fa_sm90_load_elements(float (&ret)[COUNT], const char *row,
                                                      int32_t width)
{
	const int32_t first = threadIdx.x % 32 * COUNT;
	uint32_t words[COUNT / 2];

	static_assert(COUNT == 2 || COUNT == 4 || COUNT == 8, "one load instruction");
#pragma unroll
	for (int i = 0; i < COUNT / 2; i++)
		words[i] = 0;
	if (first < width) {
		const char *const at = row + first * 2;

		if constexpr (COUNT == 8) {
			const uint4 value = *(const uint4 *)at;

			words[0] = value.x;
			words[1] = value.y;
			words[2] = value.z;
			words[3] = value.w;
		} else if constexpr (COUNT == 4) {
			const uint2 value = *(const uint2 *)at;

			words[0] = value.x;
			words[1] = value.y;
		} else {
			words[0] = *(const uint32_t *)at;
		}
	}
#pragma unroll
	for (int i = 0; i < COUNT; i++)
		ret[i] = fa_widen<T>((uint16_t)(words[i / 2] >> i % 2 * 16));
}

/* Columns of V in this slice; another thread block has those beyond. */
template <class C>
__device__ __forceinline__ int32_t fa_sm90_slice_width(const struct fa_cuda_attention &args,
                                                       const struct fa_work &work)
{
	return min(args.head_dim_v - work.slice * C::DIM_V, C::DIM_V);
}

/* Returns bits of the lane's infinite or NaN elements in a row that this warp stored. */
template <class C>
__device__ __forceinline__ uint32_t fa_sm90_nonfinite_columns(const char *row, int32_t width)
{
	constexpr int count = fa_sm90_lane_elements<C::DIM_V>::count;
	uint32_t nonfinite = 0;

#pragma unroll
	for (int i = 0; i < count; i++) {
		const int32_t column = threadIdx.x % 32 * count + i;

		if (column < width &&
		    !(fabsf(fa_widen<typename C::T>(((const volatile uint16_t *)row)[column])) <
		      INFINITY))
			nonfinite |= 1u << i;
	}
	return nonfinite;
}

/* Recomputes one row. @nonfinite: fa_sm90_nonfinite_columns() of @target. */
template <class C>
__device__ __forceinline__ void fa_sm90_recompute_row(const typename C::ARGS &all,
                                                      const typename C::SOURCE::WORK &work,
                                                      int32_t row, char *target, uint32_t nonfinite)
{
	using T = typename C::T;
	const struct fa_cuda_attention &args = C::SOURCE::attention(all);
	constexpr int count = fa_sm90_lane_elements<C::DIM>::count, keys = FA_SM90_RECOMPUTE_KEYS;
	constexpr int count_v = fa_sm90_lane_elements<C::DIM_V>::count;
	const int32_t position = row + work.diagonal, first = C::SOURCE::first_key(work);
	const int32_t width_v = fa_sm90_slice_width<C>(args, work);
	int32_t key = C::BAND ? max(first, position - args.window_left) : first;
	const int32_t end = C::BAND ? min(work.n_k, position + args.window_right + 1) : work.n_k;
	float *const lse =
		args.lse && work.slice == 0
			? &args.lse[work.sequence * args.lse_stride_batch +
	                            ((int64_t)work.first_q + row) * args.lse_stride_token +
	                            work.head * args.lse_stride_head]
			: NULL;
	/* Overflown sums show in the LSE; infinities of V do not. */
	const bool lse_is_finite = !lse || fabsf(*(const volatile float *)lse) < INFINITY;
	const float slope = C::SCORE_MOD ? fa_sm90_alibi_slope(args, work.head) : 0;
	/* P V of finite values is finite, as in common/warp_softmax.h. */
	constexpr float exponent = fa_warp_exponent<struct fa_bf16>();
	fa_sm90_row_sight<C> sight; /* LISTED */
	float q[count], out[count_v], offset = FLT_MAX, sum = 0;

	fa_sm90_load_elements<T>(q,
	                         fa_work_base(args.q, work.sequence, work.first_q, work.head) +
	                                 row * args.q.stride_token,
	                         args.head_dim);
	if constexpr (C::LISTED)
		sight.begin(all, work, row);
#pragma unroll
	for (int i = 0; i < count_v; i++)
		out[i] = 0;
#pragma unroll 1
	for (; key < end; key += keys) {
		if constexpr (C::LISTED) {
			if (!sight.listed(key)) {
				key = sight.block_end(key) - keys;
				continue;
			}
		}

		float dots[keys], values[keys][count_v], lower = offset, scale;
		uint32_t sure = 0;

#pragma unroll
		for (int j = 0; j < keys; j++) {
			bool seen = key + j < end;
			float elements[count];

			/* Keys past the end are neither loaded nor looked up. */
			const int32_t at = min(key + j, end - 1);

			if constexpr (C::LISTED)
				seen = seen && sight.sees(at);

			fa_sm90_load_elements<T>(elements, C::SOURCE::k_row(all, work, at),
			                         seen ? args.head_dim : 0);
			fa_sm90_load_elements<T>(values[j],
			                         C::SOURCE::v_row(all, work, at) +
			                                 work.slice * C::DIM_V * 2,
			                         seen ? width_v : 0);
			dots[j] = 0;
#pragma unroll
			for (int i = 0; i < count; i++)
				dots[j] = fmaf(q[i], elements[i], dots[j]);
		}
#pragma unroll
		for (int j = 0; j < keys; j++) {
#pragma unroll
			for (int step = 1; step < 32; step *= 2)
				dots[j] += __shfl_xor_sync(~0u, dots[j], step);
			dots[j] = C::SCORE_MOD
			                  ? fa_sm90_logit(dots[j], args, slope, key + j - position)
			                  : dots[j] * args.scale_log2;
			dots[j] = key + j < end ? dots[j] : -INFINITY;
			if constexpr (C::LISTED)
				dots[j] = key + j < end && sight.sees(key + j) ? dots[j]
				                                               : -INFINITY;
			lower = fminf(lower, exponent - dots[j]);
		}
		scale = fa_ex2(lower - offset);
		offset = lower;
		sum *= scale;
#pragma unroll
		for (int i = 0; i < count_v; i++)
			out[i] *= scale;
#pragma unroll
		for (int j = 0; j < keys; j++) {
			const float p = fa_ex2(dots[j] + lower);

			sum += p;
#pragma unroll
			for (int i = 0; i < count_v; i++)
				out[i] = fmaf(p, values[j][i], out[i]);
		}

		/* Either the row stays NaN, or the stored row is right. */
		if (isnan(sum))
			break;
#pragma unroll
		for (int i = 0; i < count_v; i++)
			sure |= isnan(out[i]) ? 1u << i : 0;
		if (lse_is_finite && __all_sync(~0u, !(nonfinite & ~sure)))
			return;
	}

	const float scale = fa_sm90_row_scale<C>(fa_sm90_sink<C>(args, work.head), offset, sum);

#pragma unroll
	for (int i = 0; i < count_v; i++) {
		const int32_t column = threadIdx.x % 32 * count_v + i;

		if (column < width_v)
			((uint16_t *)target)[column] = (uint16_t)fa_pack<T>(out[i] * scale, 0);
	}
	if (lse && threadIdx.x % 32 == 0)
		*lse = sum == 0 ? -INFINITY : (fa_lg2(sum) - offset) * 0.693147181f;
}

/* @check: what fa_sm90_epilogue() returned. */
template <class C>
__device__ __forceinline__ void fa_sm90_recompute(const typename C::ARGS &all, uint32_t group,
                                                  typename C::CHECK check)
{
	const struct fa_cuda_attention &args = C::SOURCE::attention(all);
	typename C::SOURCE::template SCHEDULER<C> scheduler(all);
	typename C::SOURCE::BLOCK block;
	typename C::SOURCE::WORK work;

	__syncwarp();
#pragma unroll 1
	while (scheduler.next(all, block, work)) {
		int32_t first = fa_sm90_group_row<C>(work.row, group, scheduler.reversed) +
		                threadIdx.x % 128 / 32 * 16;

		if constexpr (C::PACKED) {
			if (!all.join_wait_ns &&
			    !fa_sm90_unit_joined<C>(all, fa_sm90_block_index<C>(), group))
				continue;
			work = C::SOURCE::template find<C>(all, block, group);
			first = work.row + fa_sm90_warp_row();
		}
#pragma unroll 1
		for (int32_t row = first; row < min(first + 16, work.n_q); row++) {
			if (C::PACKED && !(check >> (row - first) & 1))
				continue;

			char *const target = (char *)fa_work_base(args.out, work.sequence,
			                                          work.first_q, work.head) +
			                     row * args.out.stride_token +
			                     work.slice * C::DIM_V * 2;
			const uint32_t nonfinite = fa_sm90_nonfinite_columns<C>(
				target, fa_sm90_slice_width<C>(args, work));

			if (!__any_sync(~0u, nonfinite))
				continue;
			if constexpr (C::PACKED)
				if constexpr (C::SOURCE::SUFFIXES)
					fa_sm90_packed_work_of_row<C>(all, row, work);
			fa_sm90_recompute_row<C>(all, work, row, target, nonfinite);
		}
	}
}
