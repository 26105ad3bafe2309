/*
 * End of a segment in decode with bulk copies: the warps' results are merged, then stored or
 * reduced over blocks (paged_reduce.h). Also clears V's rows that are no tokens. C also has
 * has_no_nan() of 16 bytes of V.
 */
#pragma once

#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/paged_combine.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/sm90/paged_reduce.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

__device__ __forceinline__ void fa_sm90_paged_swap_if(uint32_t &a, uint32_t &b, bool swap)
{
	const uint32_t x = swap ? b : a, y = swap ? a : b;

	a = x;
	b = y;
}

/* Zeroes those of 16 rows of V, from @token on, that are no tokens of the item. Returns,
 * uniformly, whether all elements are finite now. */
template <class C>
__device__ __forceinline__ bool fa_sm90_paged_zero_invalid_v(const struct fa_cuda_paged_item &item,
                                                             uint32_t v, int32_t token)
{
	constexpr uint32_t chunks = C::PITCH / 16;
	/* Loads in flight; at d64 registers allow no more. */
	constexpr int at_once = C::DIM == 64 ? 2 : 4;
	const bool all = token >= (int32_t)item.begin &&
	                 token + FA_CUDA_PAGED_STRIP <= (int32_t)item.n_k;
	bool numbers = true;

	static_assert(16 * chunks % (32 * at_once) == 0, "all lanes have equally many chunks");
#pragma unroll 1
	for (uint32_t i = threadIdx.x % 32; i < 16 * chunks; i += 32 * at_once) {
		uint4 values[at_once];

#pragma unroll
		for (int j = 0; j < at_once; j++)
			values[j] = fa_ld_shared_v4(v + i * 16 + j * 512);
#pragma unroll
		for (int j = 0; j < at_once; j++) {
			const int32_t at_token = token + (int32_t)((i + 32 * j) / chunks);

			if (at_token < (int32_t)item.begin || at_token >= (int32_t)item.n_k)
				fa_st_shared_v4(v + i * 16 + j * 512, make_uint4(0, 0, 0, 0));
			else
				numbers &= C::has_no_nan(values[j]);
		}
	}
	/* Orders the stores before the stage's next copy, and before other lanes' loads. */
	if (!all) {
		fa_proxy_fence_shared();
		__syncwarp();
	}
	return !__any_sync(~0u, !numbers);
}

/* Called early: at the segment's end it would delay the launch. */
template <class C>
__device__ __forceinline__ struct fa_paged_row
fa_sm90_paged_fact_of(const struct fa_cuda_paged_attention &args,
                      const fa_paged_segment_of<C> &segment, uint32_t row)
{
	struct fa_paged_row info = fa_paged_row_of<C>(args, segment, row);

	if constexpr (!C::SPLIT_ITEMS) {
		const struct fa_cuda_attention &p = args.attention;
		const uint32_t at = min(segment.row(args, C::ROWS) + row,
		                        segment.item.n_q * p.group - 1);

		info.head = segment.kv_head(args) * p.group + (at - info.token * p.group);
		info.out = (char *)p.out.data +
		           ((int64_t)segment.item.first_q + info.token) * p.out.stride_token +
		           info.head * p.out.stride_head;
	}
	return info;
}

/* Makes cleared partial results visible to other blocks. All consumers, once, after the barrier
 * that follows fa_sm90_paged_clear_partials(). */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_fence_partials(const struct fa_cuda_paged_attention &args)
{
	if constexpr (!C::SPLIT_ITEMS)
		if (threadIdx.x == 0 && args.partial_rows > 0)
			fa_fence_device();
}

/* All consumers; @thread writes the record, thread 0 reads it. If they differ, a barrier must
 * follow. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_segment_begin(const struct fa_cuda_paged_attention &args,
                            const fa_paged_segment_of<C> &segment, char *shared,
                            uint32_t thread = 0)
{
	if constexpr (!C::SPLIT_ITEMS) {
		if (threadIdx.x == thread && !segment.whole)
			fa_sm90_paged_split_init<C>(
				args, segment,
				(struct fa_sm90_paged_split *)(shared + C::SPLIT_AT));
	}
}

template <class C>
__device__ __forceinline__ void
fa_sm90_paged_store_columns(const struct fa_cuda_paged_attention &args, char *out, uint32_t column,
                            float x, float y, float z, float w)
{
	char *const to = out + column * C::BYTES;
	uint2 all = make_uint2(fa_pack<typename C::T>(x, y), fa_pack<typename C::T>(z, w));

	if constexpr (C::QUANTISED)
		if (((const struct fa_cuda_paged_attention_quantised &)args).quantised.dtype ==
		    FA_STORE_DTYPE_BF16)
			all = make_uint2(fa_pack<fa_bf16>(x, y), fa_pack<fa_bf16>(z, w));

	if (__builtin_expect(args.attention.aligned, 1)) {
		*(uint2 *)to = all;
	} else {
		((uint16_t *)to)[0] = (uint16_t)all.x;
		((uint16_t *)to)[1] = (uint16_t)(all.x >> 16);
		((uint16_t *)to)[2] = (uint16_t)all.y;
		((uint16_t *)to)[3] = (uint16_t)(all.y >> 16);
	}
}

template <class C>
__device__ __forceinline__ void
fa_sm90_paged_finish_columns(const struct fa_cuda_paged_attention &args,
                             const fa_paged_segment_of<C> &segment, const struct fa_paged_row &info,
                             uint32_t column, const struct fa_sm90_paged_total &total)
{
	const struct fa_cuda_attention &p = args.attention;
	float *lse = NULL;

	if (column == 0 && p.lse)
		lse = p.lse + ((int64_t)segment.item.first_q + info.token) * p.lse_stride_token +
		      info.head * p.lse_stride_head;

	const float factor = fa_paged_factor(p, info.head, total.max, total.sum, lse);

	fa_sm90_paged_store_columns<C>(args, info.out, column, total.x * factor, total.y * factor,
	                               total.z * factor, total.w * factor);
}

/* In pieces, a segment that is not the whole part gives a partial result. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_piece_columns(const struct fa_cuda_paged_attention &args,
                            const fa_paged_segment_of<C> &segment, uint32_t row, uint32_t column,
                            const struct fa_sm90_paged_total &total)
{
	if (segment.whole) {
		const struct fa_paged_out_row target = fa_paged_out_row_of<C>(args, segment, row);
		const float factor = fa_paged_factor(args.attention, target.head, total.max,
		                                     total.sum, column == 0 ? target.lse : NULL);

		fa_sm90_paged_store_columns<C>(args, target.out, column, total.x * factor,
		                               total.y * factor, total.z * factor,
		                               total.w * factor);
	} else {
		const uint32_t share = fa_paged_partial_row<C>(args, segment);

		*(float4 *)&args.partials[(size_t)(share + row) * C::DIM_V + column] = make_float4(
			total.x, total.y, total.z, total.w);
		if (column == 0)
			*(float2 *)&args.partial_sums[(share + row) * 2] = make_float2(total.max,
			                                                               total.sum);
	}
}

/* Signals the part's end to the host, if the launch signals parts. All consumers, after a barrier
 * behind the part's last store. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_signal_part(const struct fa_cuda_paged_attention &args,
                          const fa_paged_segment_of<C> &segment)
{
	if (threadIdx.x == 0 && args.attention.done.parts > 0)
		fa_done_part(args.attention.done, segment.part);
}

/* Merges four columns of a row over all warps, with lanes that are LANES apart. @stats:
 * [warp][row]; @merge: the first warp's columns, @pitch floats per warp. */
template <class C, int LANES>
__device__ __forceinline__ void fa_sm90_paged_merge_warps(
	const struct fa_cuda_paged_attention &args, const fa_paged_segment_of<C> &segment,
	const struct fa_paged_row *rows_info, const struct fa_sm90_paged_split &split,
	const float2 *stats, const float *merge, uint32_t pitch, uint32_t row, uint32_t column)
{
	const uint32_t lane = threadIdx.x % 32;
	struct fa_sm90_paged_total total = { -FLT_MAX, 0, 0, 0, 0, 0 };

#pragma unroll
	for (uint32_t from = 0; from < C::WARPS; from++)
		total.max = fmaxf(total.max, stats[from * C::ROWS + row].x);
/* A higher factor would spill. */
#pragma unroll 4
	for (uint32_t from = lane / LANES; from < C::WARPS; from += 32 / LANES) {
		const float2 stat = stats[from * C::ROWS + row];
		const float4 out = *(const float4 *)&merge[from * pitch];
		const float weight = fa_ex2(stat.x - total.max);

		total.sum += weight * stat.y;
		total.x += weight * out.x;
		total.y += weight * out.y;
		total.z += weight * out.z;
		total.w += weight * out.w;
	}
	total.add_lanes<LANES>();
	if (lane >= LANES)
		return;
	if constexpr (C::SPLIT_ITEMS)
		fa_sm90_paged_piece_columns<C>(args, segment, row, column, total);
	else if (segment.whole)
		fa_sm90_paged_finish_columns<C>(args, segment, rows_info[row], column, total);
	else
		fa_sm90_paged_store_partial<C>(args, split, row, column, total);
}

/* Stores the lane's row @r: @n 8-column tiles from tile @tile on. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_stage_columns(const struct fa_warp_rows<C> &rows,
                                                            float *at, int r, int tile, int n)
{
	const uint32_t t = threadIdx.x % 4;
	const int half = r % 2 * 2;

#pragma unroll
	for (int j = 0; j < n; j++) {
		if constexpr (!C::QUANTISED) {
			const float(&out)[4] = rows.out[r / 2][tile + j];

			*(float2 *)&at[8 * j + 2 * t] = make_float2(out[half], out[half + 1]);
		} else if (j % 2 == 0) {
			const float(&even)[4] = rows.out[r / 2][tile + j];
			const float(&odd)[4] = rows.out[r / 2][tile + j + 1];

			*(float4 *)&at[8 * j + 4 * t] = make_float4(even[half], odd[half],
			                                            even[half + 1], odd[half + 1]);
		}
	}
}

/* Stores the lane's row @r >= R; the template parameter keeps O in registers. */
template <class C, int R = 0>
__device__ __forceinline__ void fa_sm90_paged_stage_row(const struct fa_warp_rows<C> &rows,
                                                        float *at, uint32_t r)
{
	if (r == R)
		fa_sm90_paged_stage_columns<C>(rows, at, R, 0, C::DIM_V / 8);
	else if constexpr (R + 1 < 2 * C::ATOMS)
		fa_sm90_paged_stage_row<C, R + 1>(rows, at, r);
}

/* Reduces the two levels if this block is its group's last. All consumers, after a barrier behind
 * find_last(). */
template <class C, int LANES>
__device__ __forceinline__ void fa_sm90_paged_reduce_levels(
	const struct fa_cuda_paged_attention &args, const fa_paged_segment_of<C> &segment,
	const struct fa_paged_row *rows_info, struct fa_sm90_paged_split_groups &split)
{
	constexpr uint32_t row_quads = C::DIM_V / 4;
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t quads = segment.rows(args, C::ROWS) * row_quads;
	struct fa_sm90_paged_partials partials = fa_sm90_paged_partials_of_group<C>(split);
	bool adds = split.all.is_last, is_root = split.groups == 1;

#pragma unroll 1
	while (adds) {
		uint64_t before = 0;

		if (!is_root && threadIdx.x == 0)
			before = fa_sm90_paged_arrive(args, split.all.first);
#pragma unroll 1
		for (uint32_t i = warp * LANES + lane % LANES; i < quads; i += C::WARPS * LANES) {
			const uint32_t row = i / row_quads, column = i % row_quads * 4;
			const struct fa_sm90_paged_total total = fa_sm90_paged_reduce<C, LANES>(
				args, partials, row, column / 4);

			if (lane >= LANES)
				continue;
			if (is_root)
				fa_sm90_paged_finish_columns<C>(args, segment, rows_info[row],
				                                column, total);
			else
				fa_sm90_paged_store_partial_row<C>(
					args,
					(2 * fa_sm90_paged_group_block(split) + 1) * C::ROWS + row,
					column, total);
		}
		if (is_root)
			break;
		if (threadIdx.x == 0)
			split.is_root = before == (args.epoch << 16) + (split.groups - 1);
		fa_barrier_sync(C::COMPUTE, C::JOINED);
		adds = is_root = split.is_root;
		partials = fa_sm90_paged_partials_of_groups<C>(split);
	}
	fa_barrier_sync(C::COMPUTE, C::JOINED); /* before *split is written again */
	if (adds)
		fa_sm90_paged_signal_part<C>(args, segment);
}

/* All consumers. @rows_info: the warp's copy; unused in pieces. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_segment_end(const struct fa_cuda_paged_attention &args,
                          const fa_paged_segment_of<C> &segment, struct fa_warp_rows<C> &rows,
                          char *shared, const struct fa_paged_row *rows_info)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	const uint32_t there = segment.rows(args, C::ROWS);
	float2 *const stats = (float2 *)(shared + C::STATS); /* [warp][row] */
	float *const merge = (float *)(shared + C::MERGE);
	struct fa_sm90_paged_split *const split = (struct fa_sm90_paged_split *)(shared +
	                                                                         C::SPLIT_AT);
	uint64_t before = 0;
	constexpr uint32_t quads = (C::MERGE_ROWS > 0 ? C::DIM_V : C::MERGE_COLUMNS) / 4;
	constexpr int lanes = C::WARPS > 4 ? 8 : 32;
	static_assert(quads % lanes == 0 || lanes == 32, "a warp's lanes leave the loop together");
	static_assert(C::WARPS % (32 / lanes) == 0, "all lanes merge equally many warps");

	/* Thread 0, after the block's partial result is stored. */
	const auto find_last = [&]() {
		if constexpr (!C::SPLIT_ITEMS)
			if (threadIdx.x == 0 && !segment.whole)
				split->is_last = before ==
				                 (args.epoch << 16) +
				                         (fa_sm90_paged_arrivals<C>(*split) - 1);
	};

	if constexpr (!C::SPLIT_ITEMS)
		if (threadIdx.x == 0 && !segment.whole)
			before = fa_sm90_paged_arrive(args, fa_sm90_paged_counter_block<C>(*split));
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 1);
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 2);
		if (t == 0)
			stats[warp * C::ROWS + g + 8 * r] = make_float2(-rows.offset[r],
			                                                rows.sum[r]);
	}

	if constexpr (C::MERGE_ROWS > 0) {
		constexpr uint32_t some = C::MERGE_ROWS, pitch = C::MERGE_ROW_PITCH;

		static_assert(some * pitch <= C::ROWS * C::MERGE_PITCH,
		              "MERGE_ROWS rows fit MERGE");
		float *const at = &merge[(warp * some + g % some) * pitch];

#pragma unroll 1
		for (uint32_t first = 0; first < there; first += some) {
			if (g / some == first % 8 / some)
				fa_sm90_paged_stage_row<C>(rows, at, first / 8);
			/* Rows and stats are written. */
			fa_barrier_sync(C::COMPUTE, C::JOINED);
#pragma unroll 1
			for (uint32_t i = warp * lanes + lane % lanes;
			     i < min(some, there - first) * quads; i += C::WARPS * lanes) {
				const uint32_t row = i / quads, column = i % quads * 4;

				fa_sm90_paged_merge_warps<C, lanes>(
					args, segment, rows_info, *split, stats,
					&merge[row * pitch + column], some * pitch, first + row,
					column);
			}
			if (first + some >= there)
				find_last();
			/* MERGE and Q may be overwritten. */
			fa_barrier_sync(C::COMPUTE, C::JOINED);
		}
	} else {
		constexpr int steps = C::DIM_V / (int)C::MERGE_COLUMNS;

#pragma unroll
		for (int step = 0; step < steps; step++) {
#pragma unroll
			for (int r = 0; r < 2 * C::ATOMS; r++)
				if (g + 8 * r < there)
					fa_sm90_paged_stage_columns<C>(
						rows,
						&merge[(warp * C::ROWS + g + 8 * r) *
					               C::MERGE_PITCH],
						r, step * (C::MERGE_COLUMNS / 8),
						C::MERGE_COLUMNS / 8);
			/* Columns and stats are written. */
			fa_barrier_sync(C::COMPUTE, C::JOINED);
			for (uint32_t i = warp * lanes + lane % lanes; i < there * quads;
			     i += C::WARPS * lanes) {
				const uint32_t row = i / quads, quad = i % quads;

				fa_sm90_paged_merge_warps<C, lanes>(
					args, segment, rows_info, *split, stats,
					&merge[row * C::MERGE_PITCH + 4 * quad],
					C::ROWS * C::MERGE_PITCH, row,
					step * C::MERGE_COLUMNS + 4 * quad);
			}
			if (step == steps - 1)
				find_last();
			/* MERGE and Q may be overwritten. */
			fa_barrier_sync(C::COMPUTE, C::JOINED);
		}
	}
	if (segment.whole) {
		if constexpr (!C::SPLIT_ITEMS)
			fa_sm90_paged_signal_part<C>(args, segment);
		return;
	}
	if constexpr (C::SPLIT_ITEMS) {
		fa_paged_combine_split<C>(args, segment, (uint32_t *)(shared + C::STATS));
		return;
	}

	if constexpr (C::TWO_LEVEL) {
		fa_sm90_paged_reduce_levels<C, lanes>(args, segment, rows_info,
		                                      *(struct fa_sm90_paged_split_groups *)split);
		return;
	}
	if constexpr (!C::SPLIT_ITEMS) {
		constexpr uint32_t row_quads = C::DIM_V / 4;

#pragma unroll 1
		for (uint32_t i = warp * lanes + lane % lanes;
		     i < there * row_quads && split->is_last; i += C::WARPS * lanes) {
			const uint32_t row = i / row_quads, quad = i % row_quads;
			const struct fa_sm90_paged_total total = fa_sm90_paged_reduce<C, lanes>(
				args, fa_sm90_paged_partials_of_part<C>(*split), row, quad);

			if (lane < lanes)
				fa_sm90_paged_finish_columns<C>(args, segment, rows_info[row],
				                                4 * quad, total);
		}
		fa_barrier_sync(C::COMPUTE, C::JOINED); /* before *split is written again */
		if (split->is_last)
			fa_sm90_paged_signal_part<C>(args, segment);
	}
}
