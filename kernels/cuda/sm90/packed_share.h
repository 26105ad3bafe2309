/*
 * How consumer groups of several thread blocks join the parts of their rows (docs/kernels.md). Each
 * stores its part, counts itself, waits until all parts are there, and adds up some columns of all
 * parts, in the order of keys. A group that has waited for long notes in the count that it gives
 * up. The others take slices of the columns one after another; the last group to count itself never
 * waits, and takes what is left.
 */
#pragma once

#include "kernels/cuda/common/packed-args.h"
#include "kernels/cuda/common/preempt.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/control.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm90/out_rows.h"
#include "kernels/cuda/sm90/packed_source.h"
#include "kernels/cuda/sm90/yield.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* Counters of a group's four warps (FA_CUDA_PACKED_COUNTERS()). */
enum fa_sm90_share_counter {
	/* Parts that have arrived, plus FA_SM90_SHARE_GONE for each group that gave up. The first
	 * warp's counts for the group. */
	FA_SM90_SHARE_ARRIVED,
	FA_SM90_SHARE_TAKEN, /* slices; its first warp's counts */
	/* Slices of a warp that were stored and have a row to check; a counter per quarter of the
	 * rows. */
	FA_SM90_SHARE_STORED,
};

#define FA_SM90_SHARE_GONE 0x100u
static_assert(FA_CUDA_SHARE_PARTS_MAX < FA_SM90_SHARE_GONE, "parts fit below");

enum fa_sm90_share_end {
	FA_SM90_SHARE_LEFT, /* others join the parts */
	FA_SM90_SHARE_ALL,  /* all parts take part */
	FA_SM90_SHARE_SOME, /* some do not */
};

/* WIDTH chunks of 8 columns, for all rows of a warp or, with @split, for a quarter. Lane @lane adds
 * up parts @part, @part + @step, ... of the elements of the warp's thread @thread. */
template <int WIDTH> struct fa_sm90_slice {
	uint32_t chunk, quarter, thread, part, step;

	__device__ __forceinline__ fa_sm90_slice(uint32_t slice, bool split)
	{
		const uint32_t lane = threadIdx.x % 32;

		chunk = (split ? slice / 4 : slice) * WIDTH;
		quarter = split ? slice % 4 : 0;
		thread = split ? quarter * 8 + lane % 8 : lane;
		part = split ? lane / 8 : 0;
		step = split ? 4 : 1;
	}

	__device__ __forceinline__ uint32_t rows(bool split) const
	{
		return split ? 0x303u << 2 * quarter : 0xffffu;
	}
};

/* Two rows of a thread: O of two columns of each chunk, in units of 2^offset, and their sums. */
template <int WIDTH> struct fa_sm90_share {
	float out[WIDTH][4], offset[2], sum[2];
	uint32_t check; /* bit r: a part of row r is infinite, NaN or very large */

	__device__ __forceinline__ fa_sm90_share(void)
	{
#pragma unroll
		for (int c = 0; c < WIDTH; c++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				out[c][i] = 0;
		offset[0] = offset[1] = FLT_MAX;
		sum[0] = sum[1] = 0;
		check = 0;
	}

	/* A negative sum says that the row is to be checked. */
	__device__ __forceinline__ void add(const float (&weight)[2],
	                                    const float4 (&columns)[WIDTH], float sum0, float sum1)
	{
#pragma unroll
		for (int c = 0; c < WIDTH; c++) {
			out[c][0] = fmaf(weight[0], columns[c].x, out[c][0]);
			out[c][1] = fmaf(weight[0], columns[c].y, out[c][1]);
			out[c][2] = fmaf(weight[1], columns[c].z, out[c][2]);
			out[c][3] = fmaf(weight[1], columns[c].w, out[c][3]);
		}
		sum[0] = fmaf(weight[0], fabsf(sum0), sum[0]);
		sum[1] = fmaf(weight[1], fabsf(sum1), sum[1]);
		check |= __float_as_uint(sum0) >> 31 | __float_as_uint(sum1) >> 31 << 1;
	}

	__device__ __forceinline__ void lower_to(const float (&lower)[2])
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float weight = fa_ex2(lower[r] - offset[r]);

#pragma unroll
			for (int c = 0; c < WIDTH; c++) {
				out[c][r * 2] *= weight;
				out[c][r * 2 + 1] *= weight;
			}
			sum[r] *= weight;
			offset[r] = lower[r];
		}
	}

	__device__ __forceinline__ void add_lane(uint32_t distance)
	{
		float lower[2], weight[2];
		float4 columns[WIDTH], sums;

		sums.x = __shfl_xor_sync(~0u, offset[0], distance);
		sums.y = __shfl_xor_sync(~0u, offset[1], distance);
		sums.z = __shfl_xor_sync(~0u, sum[0], distance);
		sums.w = __shfl_xor_sync(~0u, sum[1], distance);
#pragma unroll
		for (int c = 0; c < WIDTH; c++) {
			columns[c].x = __shfl_xor_sync(~0u, out[c][0], distance);
			columns[c].y = __shfl_xor_sync(~0u, out[c][1], distance);
			columns[c].z = __shfl_xor_sync(~0u, out[c][2], distance);
			columns[c].w = __shfl_xor_sync(~0u, out[c][3], distance);
		}
		check |= __shfl_xor_sync(~0u, check, distance);
		lower[0] = fminf(offset[0], sums.x);
		lower[1] = fminf(offset[1], sums.y);
		weight[0] = fa_ex2(lower[0] - sums.x);
		weight[1] = fa_ex2(lower[1] - sums.y);
		lower_to(lower);
		add(weight, columns, sums.z, sums.w);
	}
};

/* An element of row @r is infinite, NaN, or so large that sums of parts may overflow. */
template <class C>
__device__ __forceinline__ bool fa_sm90_share_is_large(const fa_sm90_out_rows<C> &out, int r)
{
	static_assert(FA_CUDA_SHARE_PARTS_MAX <= 0x1p15, "parts of 2^112 have a finite sum");
	float product = 0;

#pragma unroll
	for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
		for (int e = 0; e < 2; e++)
			product = fmaf(out[j * 4 + r * 2 + e] * 0x1p16f, 0, product);
	return product != 0;
}

/* A part of a warp's rows: O in the order of fa_sm90_store_state(), then offset and sum of each of
 * the 16 rows; negative sum: check the row. @to: the thread's place. */
template <class C>
__device__ __forceinline__ void fa_sm90_share_store_part(const fa_sm90_out_rows<C> &out,
                                                         const struct fa_sm90_sums &sums,
                                                         float4 *to)
{
	using STATE = fa_sm90_state<C>;
	const uint32_t lane = threadIdx.x % 32;
	float2 *const rows = (float2 *)(to - lane + (STATE::CHUNKS - 1) * STATE::THREADS);

#pragma unroll
	for (uint32_t i = 0; i < STATE::CHUNKS - 1; i++)
		to[i * STATE::THREADS] = make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2],
		                                     out[4 * i + 3]);
#pragma unroll
	for (int r = 0; r < 2; r++) {
		uint32_t large = fa_sm90_share_is_large<C>(out, r);
		float sum = sums.sum[r];

		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		large |= __shfl_xor_sync(~0u, large, 1);
		large |= __shfl_xor_sync(~0u, large, 2);
		if (lane % 4 == 0)
			rows[r * 8 + lane / 4] = make_float2(
				sums.offset[r],
				__uint_as_float(__float_as_uint(sum) | large << 31));
	}
}

__device__ __forceinline__ bool fa_sm90_share_counts(void)
{
	return threadIdx.x % 128 == 0;
}

/* of.counter is the calling warp's first one. */
template <class C>
__device__ __forceinline__ uint64_t *fa_sm90_share_counter_of(const struct fa_sm90_unit_parts &of,
                                                              uint32_t which)
{
	return of.counter - threadIdx.x % 128 / 32 + which * C::GROUPS * 4;
}

/* Another atomic operation right before the count would delay it. All threads of a group. */
template <class C>
__device__ __forceinline__ void fa_sm90_share_begin(const typename C::ARGS &all, uint32_t group)
{
	if (!all.join_wait_ns || !fa_sm90_share_counts())
		return;

	const struct fa_sm90_unit_parts of = fa_sm90_unit_parts_of<C>(all, fa_sm90_block_index<C>(),
	                                                              group);

	if (of.parts > 1)
		fa_atomic_max(fa_sm90_share_counter_of<C>(of, FA_SM90_SHARE_ARRIVED),
		              all.epoch << 16);
}

/* Waits for the others; one thread. */
template <class C>
__device__ __forceinline__ fa_sm90_share_end
fa_sm90_share_arrive(const typename C::ARGS &all, const struct fa_sm90_unit_parts &of)
{
	const struct fa_cuda_attention &args = C::SOURCE::attention(all);
	uint64_t *const counter = fa_sm90_share_counter_of<C>(of, FA_SM90_SHARE_ARRIVED);
	const uint64_t begin_ns = fa_timer_ns();
	uint64_t count = fa_atomic_add_ordered(counter, 1) + 1;

	for (uint32_t looks = 1; (count & (FA_SM90_SHARE_GONE - 1)) < of.parts; looks++) {
		const bool gives_up = looks % 8 == 0 &&
		                      (fa_timer_ns() - begin_ns >= all.join_wait_ns ||
		                       fa_preempt_requested(args.preempt));

		/* It fails if another part arrived meanwhile. */
		if (gives_up && fa_atomic_swap(counter, count, count + FA_SM90_SHARE_GONE) == count)
			return FA_SM90_SHARE_LEFT;
		count = fa_ld_acquire_device(counter);
	}
	return count - (all.epoch << 16) < FA_SM90_SHARE_GONE ? FA_SM90_SHARE_ALL
	                                                      : FA_SM90_SHARE_SOME;
}

/* Adds up one slice of @n parts. @base: the warp's place in the first. */
template <class C, int WIDTH>
__device__ __forceinline__ void fa_sm90_share_add_up(struct fa_sm90_share<WIDTH> &ret,
                                                     const struct fa_sm90_slice<WIDTH> &slice,
                                                     const float4 *base, uint32_t n)
{
	using STATE = fa_sm90_state<C>;
	/* Parts whose loads are in flight together. */
	constexpr uint32_t at_once = 16 / WIDTH;
	constexpr uint64_t stride = STATE::BYTES / sizeof(float4);

	const float2 *const rows = (const float2 *)(base + (STATE::CHUNKS - 1) * STATE::THREADS) +
	                           slice.thread / 4;

	base += slice.thread;
#pragma unroll 1
	for (uint32_t first = slice.part; first < n; first += at_once * slice.step) {
		float4 columns[at_once][WIDTH];
		float2 sums[at_once][2];
		float lower[2] = { ret.offset[0], ret.offset[1] };

#pragma unroll
		for (uint32_t i = 0; i < at_once; i++) {
			const uint64_t at = min(first + i * slice.step, n - 1) * stride;

#pragma unroll
			for (uint32_t r = 0; r < 2; r++)
				sums[i][r] = __ldcg(rows + at * 2 + r * 8);
#pragma unroll
			for (uint32_t c = 0; c < WIDTH; c++)
				columns[i][c] = __ldcg(base + at +
				                       (slice.chunk + c) * STATE::THREADS);
		}
#pragma unroll
		for (uint32_t i = 0; i < at_once; i++) {
			lower[0] = fminf(lower[0], sums[i][0].x);
			lower[1] = fminf(lower[1], sums[i][1].x);
		}
		ret.lower_to(lower);
#pragma unroll
		for (uint32_t i = 0; i < at_once; i++) {
			const float weight[2] = { fa_ex2(lower[0] - sums[i][0].x),
				                  fa_ex2(lower[1] - sums[i][1].x) };

			if (first + i * slice.step < n)
				ret.add(weight, columns[i], sums[i][0].y, sums[i][1].y);
		}
	}
}

/* True: the lane has a row to check. */
template <class C, int WIDTH>
__device__ __forceinline__ bool fa_sm90_share_store(const struct fa_sm90_share<WIDTH> &share,
                                                    const struct fa_sm90_slice<WIDTH> &slice,
                                                    const struct fa_cuda_attention &args,
                                                    const struct fa_work &work)
{
	const uint32_t t = slice.thread % 4;
	bool check = false;

#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int32_t row = work.row + (int32_t)fa_sm90_warp_row() + r * 8 +
		                    (int32_t)slice.thread / 4;
		float sum = share.sum[r], offset = share.offset[r];
		const float scale = fa_sm90_row_scale<C>(fa_sm90_sink<C>(args, work.head), offset,
		                                         sum);

		if (slice.part > 0 || row >= work.n_q)
			continue;
		check |= share.check >> r & 1 || isnan(scale);
#pragma unroll
		for (int c = 0; c < WIDTH; c++)
			*(uint32_t *)(fa_sm90_out_row<C>(args, work, row) + (slice.chunk + c) * 16 +
			              t * 4) = fa_pack<typename C::T>(share.out[c][r * 2] * scale,
			                                              share.out[c][r * 2 + 1] *
			                                                      scale);
		if (args.lse && slice.chunk == 0 && t == 0)
			args.lse[work.sequence * args.lse_stride_batch +
			         ((int64_t)work.first_q + row) * args.lse_stride_token +
			         work.head * args.lse_stride_head] =
				sum == 0 ? -INFINITY : (fa_lg2(sum) - offset) * 0.693147181f;
	}
	return check;
}

/* As fa_sm90_share_join(). */
template <class C, int WIDTH>
__device__ __forceinline__ uint32_t fa_sm90_share_slices(const typename C::ARGS &all,
                                                         const struct fa_sm90_unit_parts &of,
                                                         const struct fa_work &work,
                                                         fa_sm90_share_end end, bool has_rows,
                                                         uint32_t barrier)
{
	using STATE = fa_sm90_state<C>;
	constexpr uint32_t wide_chunks = (STATE::CHUNKS - 1) / WIDTH;
	const bool split = WIDTH == 1 && of.parts >= FA_CUDA_SHARE_PARTS_SPLIT;
	const uint32_t slices = split ? wide_chunks * 4 : wide_chunks;
	const float4 *const base = (const float4 *)((const char *)all.unit_partials +
	                                            (uint64_t)of.partial * STATE::BYTES) +
	                           (threadIdx.x + fa_opaque_zero()) / 32 * 32 - 128;
	uint32_t rows = 0, next = of.part;

	const auto count = [&](uint64_t *counter, bool ordered) {
		fa_atomic_max(counter, all.epoch << 16);
		return (uint32_t)((ordered ? fa_atomic_add_ordered(counter, 1)
		                           : fa_atomic_count(counter, 1)) -
		                  (all.epoch << 16));
	};
	/* Gives all threads of the group the answer. */
	const auto take = [&](void) {
		uint32_t taken = 0, slice = 0;

		if (fa_sm90_share_counts())
			taken = count(fa_sm90_share_counter_of<C>(of, FA_SM90_SHARE_TAKEN), false);
#pragma unroll 1
		for (uint32_t bit = 1; bit <= 256; bit *= 2)
			slice |= fa_barrier_any(barrier, 128, taken & bit) ? bit : 0;
		return slice;
	};

	static_assert((STATE::CHUNKS - 1) * 4 + FA_CUDA_SHARE_PARTS_MAX < 512, "9 bits");
	if (end == FA_SM90_SHARE_SOME)
		next = take();
#pragma unroll 1
	while (next < slices) {
		if (has_rows) {
			const struct fa_sm90_slice<WIDTH> slice(next, split);
			struct fa_sm90_share<WIDTH> share;

			fa_sm90_share_add_up<C, WIDTH>(share, slice, base, of.parts);
			if (split) {
				share.add_lane(8);
				share.add_lane(16);
			}

			const bool check = fa_sm90_share_store<C, WIDTH>(
				share, slice, C::SOURCE::attention(all), work);

			if (__any_sync(~0u, check)) {
				uint32_t before = 0;

				__syncwarp();
				if (threadIdx.x % 32 == 0)
					before = count(of.counter + (FA_SM90_SHARE_STORED +
					                             slice.quarter) *
					                                    C::GROUPS * 4,
					               true);
				before = __shfl_sync(~0u, before, 0);
				__syncwarp();
				if (before == wide_chunks - 1)
					rows |= slice.rows(split);
			}
		}
		next = end == FA_SM90_SHARE_SOME ? take() : next + of.parts;
	}
	return rows;
}

/* Joins the unit's rows of a group with other units'. Returns the warp's rows that recompute.h must
 * check, as bits; their columns are all stored by then. All threads of the group. */
template <class C>
__device__ __forceinline__ uint32_t fa_sm90_share_join(const fa_sm90_out_rows<C> &out,
                                                       const struct fa_sm90_sums &sums,
                                                       const typename C::ARGS &all, uint32_t group,
                                                       const struct fa_sm90_unit_parts &of,
                                                       const struct fa_work &work)
{
	using STATE = fa_sm90_state<C>;
	const uint32_t barrier = C::group_barrier(group);
	const bool has_rows = work.row + (int32_t)fa_sm90_warp_row() < work.n_q;
	fa_sm90_share_end end = FA_SM90_SHARE_LEFT;

	/* A group without rows has nothing to hand over. */
	if (!fa_barrier_any(barrier, 128, has_rows))
		return 0;
	if (has_rows)
		fa_sm90_share_store_part<C>(
			out, sums,
			(float4 *)((char *)all.unit_partials +
		                   (uint64_t)(of.partial + of.part) * STATE::BYTES) +
				(threadIdx.x + fa_opaque_zero() - 128));
	fa_barrier_sync(barrier, 128);
	if (fa_sm90_share_counts())
		end = fa_sm90_share_arrive<C>(all, of);
	if (fa_barrier_any(barrier, 128, end == FA_SM90_SHARE_ALL))
		end = FA_SM90_SHARE_ALL;
	else if (fa_barrier_any(barrier, 128, end == FA_SM90_SHARE_SOME))
		end = FA_SM90_SHARE_SOME;
	else
		return 0;
	/* Wide slices keep as many loads in flight. */
	if (of.parts <= 4)
		return fa_sm90_share_slices<C, 4>(all, of, work, end, has_rows, barrier);
	if (of.parts <= 8)
		return fa_sm90_share_slices<C, 2>(all, of, work, end, has_rows, barrier);
	return fa_sm90_share_slices<C, 1>(all, of, work, end, has_rows, barrier);
}
