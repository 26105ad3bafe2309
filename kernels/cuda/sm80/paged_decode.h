/*
 * Attention over pages for few query rows; terms: paged-args.h. Query heads of a KV head are
 * packed: a part has up to ROWS rows (token by token, head by head). Warps take a segment's strips
 * of 16 tokens in turn. A warp has a ring of STAGES strips, filled by cp.async STAGES - 1 strips
 * ahead, across segments, and its own maximum, sum and O of all rows: its loop has no barrier. At a
 * segment's end the warps merge their rows (barrier 0, all threads, three times and twice per group
 * of columns). A whole part is then written; of others a partial result is stored, and the last
 * block to arrive reduces them in order.
 *
 * Scores are laid out as mma.m16n8k16's accumulators, in fp32, too: thread (g, t) has rows g + 8 r
 * and keys 2t, 2t + 1, 2t + 8, 2t + 9. Strips with hidden keys and infinities or NaNs in V need
 * another product (warp_product.h; fp32 skips hidden keys).
 */
#pragma once

#include "kernels/cuda/common/logits.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_combine.h"
#include "kernels/cuda/common/paged_reduce.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/common/swizzle.h"
#include "kernels/cuda/common/warp_pair.h"
#include "kernels/cuda/common/warp_product.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/ptx/cp_async.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm80/paged_load.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

template <class C>
__device__ __forceinline__ void fa_paged_dots_f32(float (&dots)[C::ATOMS][2][4], uint32_t q,
                                                  uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
	for (int n = 0; n < 2; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			dots[0][n][e] = 0;

#pragma unroll 2
	for (int d = 0; d < C::DIM; d += 4) {
		float rows[2][4], keys[4][4];

#pragma unroll
		for (int i = 0; i < 2; i++)
			*(uint4 *)rows[i] = fa_ld_shared_v4(q + (g + 8 * i) * C::PITCH + d * 4);
#pragma unroll
		for (int j = 0; j < 4; j++)
			*(uint4 *)keys[j] = fa_ld_shared_v4(
				k + (2 * t + j % 2 + j / 2 * 8) * C::PITCH + d * 4);
#pragma unroll
		for (int i = 0; i < 2; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					dots[0][j / 2][2 * i + j % 2] = fmaf(
						rows[i][e], keys[j][e],
						dots[0][j / 2][2 * i + j % 2]);
	}
}

/* As fa_warp_accumulate(), in fp32. @v: the tile. */
template <class C, bool ISOLATE>
__device__ __forceinline__ void
fa_paged_accumulate_f32(struct fa_warp_rows<C> &rows, const float (&dots)[C::ATOMS][2][4],
                        uint32_t v, const struct fa_paged_visibility &visible)
{
	const uint32_t lane = threadIdx.x % 32, t = lane % 4;
	float p[2][4]; /* [row][key]; with ISOLATE, -1 if hidden */

#pragma unroll
	for (int r = 0; r < 2; r++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			p[r][i] = fa_ex2(dots[0][i / 2][2 * r + i % 2] + rows.offset[r]);
			rows.sum[r] += p[r][i];
			if (ISOLATE && !visible.sees(r, i / 2 * 8 + i % 2))
				p[r][i] = -1;
		}

#pragma unroll 4
	for (int key = 0; key < 16; key++) {
		float weight[2];

#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float even = key < 8 ? p[r][0] : p[r][2];
			const float odd = key < 8 ? p[r][1] : p[r][3];

			weight[r] = __shfl_sync(~0u, key % 2 ? odd : even,
			                        (lane & ~3u) + key % 8 / 2);
		}
#pragma unroll
		for (int j = 0; j < C::DIM_V / 8; j++) {
			const uint32_t at = v + key * C::PITCH_V + (8 * j + 2 * t) * 4;
			const float x = __uint_as_float(fa_ld_shared(at));
			const float y = __uint_as_float(fa_ld_shared(at + 4));

#pragma unroll
			for (int r = 0; r < 2; r++) {
				if (ISOLATE && weight[r] < 0)
					continue;
				rows.out[0][j][2 * r] = fmaf(weight[r], x, rows.out[0][j][2 * r]);
				rows.out[0][j][2 * r + 1] = fmaf(weight[r], y,
				                                 rows.out[0][j][2 * r + 1]);
			}
		}
	}
}

/* O += exp(dots + offset) V, and the sums. @v as in fa_paged_decode(). */
template <class C, bool ISOLATE>
__device__ __forceinline__ void
fa_paged_accumulate(struct fa_warp_rows<C> &rows, const float (&dots)[C::ATOMS][2][4], uint32_t v,
                    const struct fa_warp_pair<C> &alone, const struct fa_paged_visibility &visible)
{
	if constexpr (C::F32)
		fa_paged_accumulate_f32<C, ISOLATE>(rows, dots, v, visible);
	else
		fa_warp_accumulate<C, ISOLATE>(rows, dots, 1, v, alone, visible);
}

/* True if the tile of V is finite; the same in all lanes. */
template <class C> __device__ __forceinline__ bool fa_paged_is_finite(uint32_t v_tile)
{
	bool finite = true;

#pragma unroll 4
	for (uint32_t at = threadIdx.x % 32 * 16; at < 16 * C::PITCH_V; at += 512) {
		const uint4 value = fa_ld_shared_v4(v_tile + at);

		if constexpr (C::F32) {
			float zeros = fmaf(__uint_as_float(value.x), 0, 0);

			zeros = fmaf(__uint_as_float(value.y), 0, zeros);
			zeros = fmaf(__uint_as_float(value.z), 0, zeros);
			zeros = fmaf(__uint_as_float(value.w), 0, zeros);
			finite &= zeros == 0;
		} else {
			uint32_t zeros = fa_fma_packed<typename C::T>(value.x, 0, 0);

			zeros = fa_fma_packed<typename C::T>(value.y, 0, zeros);
			zeros = fa_fma_packed<typename C::T>(value.z, 0, zeros);
			zeros = fa_fma_packed<typename C::T>(value.w, 0, zeros);
			finite &= zeros == 0;
		}
	}
	return !__any_sync(~0u, !finite);
}

/* ---- the ends of a segment */

/* All threads; the caller's barrier makes the data visible. */
template <class C>
__device__ __forceinline__ void fa_paged_begin(const struct fa_cuda_paged_attention &args,
                                               const fa_paged_segment_of<C> &segment, char *shared)
{
	const struct fa_cuda_attention &p = args.attention;
	const uint32_t address = fa_shared_address(shared);
	constexpr uint32_t chunks = C::DIM * C::BYTES / 16;

	for (uint32_t i = threadIdx.x; i < C::ROWS * chunks; i += C::THREADS) {
		const uint32_t row = i / chunks, chunk = i % chunks;
		const uint4 value = fa_paged_q_chunk<C>(p, fa_paged_q_row<C>(args, segment, row),
		                                        chunk);

		fa_st_shared_v4(address + C::Q +
		                        (C::F32 ? row * C::PITCH + chunk * 16
		                                : fa_swizzle<C::DIM>::offset(row, chunk)),
		                value);
	}
	if (threadIdx.x < C::ROWS)
		((struct fa_paged_row *)(shared + C::ROWS_INFO))[threadIdx.x] = fa_paged_row_of<C>(
			args, segment, threadIdx.x);
}

/* All threads. */
template <class C>
__device__ __forceinline__ void fa_paged_end(const struct fa_cuda_paged_attention &args,
                                             const fa_paged_segment_of<C> &segment,
                                             struct fa_warp_rows<C> &rows, char *shared)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	float2 *const stats = (float2 *)(shared + C::STATS); /* [warp][row] */
	float *const merge = (float *)(shared + C::MERGE);
	struct fa_paged_row *const rows_info = (struct fa_paged_row *)(shared + C::ROWS_INFO);
	const uint32_t share = fa_paged_partial_row<C>(args, segment);
	constexpr uint32_t pairs = C::MERGE_COLUMNS / 2;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 1);
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 2);
		if (t == 0)
			stats[warp * C::ROWS + g + 8 * r] = make_float2(-rows.offset[r],
			                                                rows.sum[r]);
	}
	__syncthreads(); /* the stats are written; Q and the rows' info are free */

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		float max = -FLT_MAX;

#pragma unroll
		for (int w = 0; w < C::WARPS; w++)
			max = fmaxf(max, stats[w * C::ROWS + g + 8 * r].x);

		const float weight = fa_ex2(-rows.offset[r] - max);

#pragma unroll
		for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				rows.out[r / 2][j][r % 2 * 2 + e] *= weight;
	}
	if (threadIdx.x < C::ROWS) {
		const uint32_t row = threadIdx.x;
		float max = -FLT_MAX, sum = 0;

		for (int w = 0; w < C::WARPS; w++)
			max = fmaxf(max, stats[w * C::ROWS + row].x);
		for (int w = 0; w < C::WARPS; w++)
			sum += stats[w * C::ROWS + row].y *
			       fa_ex2(stats[w * C::ROWS + row].x - max);
		if (segment.whole) {
			const struct fa_paged_out_row target = fa_paged_out_row_of<C>(args, segment,
			                                                              row);

			rows_info[row].factor = target.out ? fa_paged_factor(args.attention,
			                                                     target.head, max, sum,
			                                                     target.lse)
			                                   : 0;
		} else if (!C::SPLIT_ITEMS || row < segment.rows(args, C::ROWS)) {
			float *const sums = &args.partial_sums[(share + row) * 2];

			sums[0] = max;
			sums[1] = sum;
		}
	}

#pragma unroll
	for (int step = 0; step < C::DIM_V / (int)C::MERGE_COLUMNS; step++) {
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
			for (int j = 0; j < (int)C::MERGE_COLUMNS / 8; j++) {
				const float(&out)[4] =
					rows.out[r / 2][step * (C::MERGE_COLUMNS / 8) + j];

				if constexpr (C::QUANTISED) {
					float *const at = &merge[(warp * C::ROWS + g + 8 * r) *
					                                 C::MERGE_PITCH +
					                         j / 2 * 16 + 4 * t + j % 2];

					at[0] = out[r % 2 * 2];
					at[2] = out[r % 2 * 2 + 1];
					continue;
				}
				*(float2 *)&merge[(warp * C::ROWS + g + 8 * r) * C::MERGE_PITCH +
				                  8 * j + 2 * t] = make_float2(out[r % 2 * 2],
				                                               out[r % 2 * 2 + 1]);
			}
		__syncthreads(); /* columns and factors are written */
		for (uint32_t i = threadIdx.x; i < C::ROWS * pairs; i += C::THREADS) {
			const uint32_t row = i / pairs, column = i % pairs * 2;
			const struct fa_paged_out_row target = fa_paged_out_row_of<C>(args, segment,
			                                                              row);
			float x = 0, y = 0;

			if (!target.out)
				continue;
#pragma unroll
			for (int w = 0; w < C::WARPS; w++) {
				const float2 part = *(
					const float2 *)&merge[(w * C::ROWS + row) * C::MERGE_PITCH +
				                              column];

				x += part.x;
				y += part.y;
			}
			if (segment.whole) {
				const float factor = rows_info[row].factor;

				fa_paged_store<C>(args, target.out,
				                  segment.slice(args) * C::DIM_V +
				                          step * C::MERGE_COLUMNS + column,
				                  x, y, factor);
			} else {
				*(float2 *)&args.partials[(size_t)(share + row) * C::DIM_V +
				                          step * C::MERGE_COLUMNS + column] =
					make_float2(x, y);
			}
		}
		__syncthreads(); /* the columns are free */
	}
	if (segment.whole)
		return;
	if constexpr (C::SPLIT_ITEMS) {
		fa_paged_combine_split<C>(args, segment, (uint32_t *)(shared + C::STATS));
		return;
	}

	/* The barrier ordered all partial results before this thread's count. */
	const struct fa_paged_ranges ranges = fa_paged_ranges_of<C::OWN>(args);
	const uint32_t first = fa_paged_block_of(ranges, segment.tile + args.epilogue_tiles);
	const uint32_t last = fa_paged_block_of(ranges, segment.tile + segment.item.tiles - 1);
	bool *const is_last = (bool *)(shared + C::STATS);

	if (threadIdx.x == 0)
		*is_last = fa_arrive(&args.counters[first], args.epoch, last - first + 1);
	__syncthreads(); /* the answer is there */
	if (*is_last)
		fa_paged_reduce<C>(args, segment, first, last);
	__syncthreads(); /* all have read it */
}

template <class C>
__device__ __forceinline__ void fa_paged_decode(const struct fa_cuda_paged_attention &args)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const struct fa_cuda_attention &p = args.attention;
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t ring = shared + C::RING + warp * C::STAGES * C::STRIP_BYTES;
	uint32_t q = shared + C::Q, k = 0, v = C::K_BYTES, stage = ring;
	const struct fa_warp_pair<C> alone(0, 0);
	struct fa_logits_rich logits(p, 0);
	struct fa_paged_loader<C> loader;
	fa_paged_segment_of<C> segment;

	/* This lane's ldmatrix addresses: of Q, and of K and V within a stage. */
	if constexpr (!C::F32) {
		q += fa_swizzle<C::DIM>::offset(lane % 16, lane / 16);
		k += fa_swizzle<C::DIM>::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
		v += fa_swizzle<C::DIM_V>::offset(lane % 16, lane / 16);
	}
	logits.slope = 0;

	loader.start(args, shared);
#pragma unroll
	for (int i = 0; i < C::STAGES - 1; i++)
		loader.step(args);
	segment.start(args, blockIdx.x);

	do {
		const struct fa_cuda_paged_item &item = segment.item;
		const uint32_t rows_info = shared + C::ROWS_INFO;
		struct fa_warp_rows<C> rows;

		fa_paged_begin<C>(args, segment, shared_memory);
		__syncthreads(); /* Q and the rows' info are written */

		fa_warp_clear<C>(rows);

		const struct fa_paged_unmasked clear = fa_paged_unmasked_of<C>(args, item,
		                                                               rows_info);

#pragma unroll 1
		for (int32_t token = segment.begin + warp * FA_CUDA_PAGED_STRIP;
		     token < segment.end; token += C::WARPS * FA_CUDA_PAGED_STRIP) {
			if constexpr (fa_own_patterns<C>)
				if (fa_own_of(args).pattern_strips &&
				    !fa_own_sees(args, fa_paged_first_position(item),
				                 segment.kv_head(args), token))
					continue;

			const bool hides = clear.hides(token);
			struct fa_paged_visibility visible = { ~0u };
			float dots[C::ATOMS][2][4];

			fa_cp_async_wait<C::STAGES - 2>();
			__syncwarp(); /* the strip has arrived, and all are done with the previous one */
			loader.step(args);

			if constexpr (C::F32)
				fa_paged_dots_f32<C>(dots, q, stage + k);
			else
				fa_warp_dots<C, C::DIM <= 256 ? C::DIM / 16 : 4>(dots, q,
				                                                 stage + k);
			logits.apply(dots, 0);
			if (hides || p.alibi_slopes)
				visible = fa_paged_mask_scores<C>(dots, args, item, rows_info,
				                                  token);
			fa_warp_raise_max<C>(rows, dots, 1, alone);
			if (hides && !fa_paged_is_finite<C>(stage + C::K_BYTES))
				fa_paged_accumulate<C, true>(rows, dots, stage + v, alone, visible);
			else
				fa_paged_accumulate<C, false>(rows, dots, stage + v, alone,
				                              visible);

			stage += C::STRIP_BYTES;
			if (stage == ring + C::STAGES * C::STRIP_BYTES)
				stage = ring;
		}
		fa_paged_end<C>(args, segment, rows, shared_memory);
	} while (segment.next(args));
}
