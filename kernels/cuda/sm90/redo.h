/*
 * Rows whose O came out infinite or NaN, computed again by one warp, a key at a time, on
 * the CUDA cores, after everything else. That is for two cases, both rare, so it is short
 * and not fast:
 *   - K or V have an infinity or NaN in a key that other rows of the tile see and this
 *     one does not: its p is 0 there, but 0 times NaN is NaN. Here a row touches nothing
 *     that it does not see;
 *   - a row's logits rose by more than the exponents of bf16 reach (fa_sm90_lower()).
 * In all other cases the result is infinite or NaN again.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/span.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* A lane's COUNT elements of a row of @width elements at @row; 0 past the end. */
template <class T, int COUNT>
__device__ __forceinline__ void fa_sm90_elements(float (&ret)[COUNT], const char *row,
                                                 int32_t width)
{
	const int32_t first = threadIdx.x % 32 * COUNT;

#pragma unroll
	for (int i = 0; i < COUNT; i++)
		ret[i] = first + i < width ? fa_widen<T>(((const uint16_t *)row)[first + i]) : 0;
}

template <class C>
__device__ __forceinline__ void fa_sm90_redo_row(const struct fa_cuda_attention &args,
                                                 const struct fa_work &work, int32_t row,
                                                 char *target)
{
	using T = typename C::T;
	constexpr int count = C::DIM / 32, count_v = C::DIM_V / 32;
	const int32_t position = row + work.diagonal, kv_head = work.head / args.group;
	const int32_t width_v = args.head_dim_v - work.slice * C::DIM_V;
	int32_t key = C::BAND ? max(0, position - args.window_left) : 0;
	const int32_t end = C::BAND ? min(work.n_k, position + args.window_right + 1) : work.n_k;
	const char *k = fa_work_base(args.k, work.sequence, work.first_k, kv_head) +
	                key * args.k.stride_token;
	const char *v = fa_work_base(args.v, work.sequence, work.first_k, kv_head) +
	                key * args.v.stride_token + work.slice * C::DIM_V * 2;
	float q[count], out[count_v], offset = FLT_MAX, sum = 0;

	fa_sm90_elements<T>(q,
	                    fa_work_base(args.q, work.sequence, work.first_q, work.head) +
	                            row * args.q.stride_token,
	                    args.head_dim);
#pragma unroll
	for (int i = 0; i < count_v; i++)
		out[i] = 0;
#pragma unroll 1
	for (; key < end; key++, k += args.k.stride_token, v += args.v.stride_token) {
		float elements[count], values[count_v], dot = 0, lower, scale, p;

		fa_sm90_elements<T>(elements, k, args.head_dim);
		fa_sm90_elements<T>(values, v, width_v);
#pragma unroll
		for (int i = 0; i < count; i++)
			dot = fmaf(q[i], elements[i], dot);
#pragma unroll
		for (int step = 1; step < 32; step *= 2)
			dot += __shfl_xor_sync(~0u, dot, step);
		dot *= args.scale_log2;
		lower = fminf(offset, -dot);
		scale = fa_ex2(lower - offset);
		p = fa_ex2(dot + lower);
		offset = lower;
		sum = fmaf(sum, scale, p);
#pragma unroll
		for (int i = 0; i < count_v; i++)
			out[i] = fmaf(p, values[i], out[i] * scale);
	}

	const float scale = sum == 0 ? 0 : fa_rcp(sum);

#pragma unroll
	for (int i = 0; i < count_v; i++) {
		const int32_t column = threadIdx.x % 32 * count_v + i;

		if (column < width_v)
			((uint16_t *)target)[column] = (uint16_t)fa_pack<T>(out[i] * scale, 0);
	}
	if (args.lse && threadIdx.x % 32 == 0 && work.slice == 0)
		args.lse[work.sequence * args.lse_stride_batch +
		         ((int64_t)work.first_q + row) * args.lse_stride_token +
		         work.head * args.lse_stride_head] = sum == 0 ? -INFINITY
		                                                      : (fa_lg2(sum) - offset) *
		                                                                0.693147181f;
}

/* Whether a row of @width elements that this warp has written is infinite or NaN anywhere. */
template <class C>
__device__ __forceinline__ bool fa_sm90_row_broken(const char *row, int32_t width)
{
	constexpr int count = C::DIM_V / 32;
	bool broken = false;

#pragma unroll
	for (int i = 0; i < count; i++) {
		const int32_t column = threadIdx.x % 32 * count + i;

		if (column < width)
			broken |= !(fabsf(fa_widen<typename C::T>(
					    ((const volatile uint16_t *)row)[column])) < INFINITY);
	}
	return __any_sync(~0u, broken);
}

/* Goes through all rows of this warp again. */
template <class C>
__device__ __forceinline__ void fa_sm90_redo(const struct fa_cuda_attention &args, uint32_t group)
{
	struct fa_sm90_walk<C> walk(args);
	struct fa_sm90_block block;
	struct fa_work work;

	__syncwarp();
#pragma unroll 1
	while (walk.next(args, block, work)) {
		const int32_t first = work.row + group * C::GROUP_ROWS +
		                      threadIdx.x % 128 / 32 * 16;

#pragma unroll 1
		for (int32_t row = first; row < min(first + 16, work.n_q); row++) {
			char *const target = (char *)fa_work_base(args.out, work.sequence,
			                                          work.first_q, work.head) +
			                     row * args.out.stride_token +
			                     work.slice * C::DIM_V * 2;

			if (fa_sm90_row_broken<C>(target, args.head_dim_v - work.slice * C::DIM_V))
				fa_sm90_redo_row<C>(args, work, row, target);
		}
	}
}
