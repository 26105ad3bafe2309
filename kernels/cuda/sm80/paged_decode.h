/*
 * Attention over pages for few query rows. The query heads that share a KV head are
 * packed: a part of a sequence is up to ROWS rows (token by token, head by head) of one KV
 * head. All parts' tiles of 64 tokens, one part after the other, are divided evenly among
 * the blocks as contiguous ranges (paged-args.h); what a block has of one part is a
 * segment.
 *
 * Within a segment warps take strips of 16 tokens in turn. A warp has a ring of STAGES
 * strips to itself, filled by its own cp.async, and its own maximum, sum and O of all ROWS
 * rows, so that its loop over strips has no barrier. Its loader runs STAGES - 1 strips
 * ahead, across the ends of segments. At a segment's end the warps bring their rows
 * together (barrier 0, all threads, three times and twice for each group of columns);
 * a whole part is then finished, of others the block stores its share, and whoever comes
 * last (counters of the launch's epoch) adds the shares up in their order.
 *
 * A strip's scores have the layout of mma.m16n8k16's accumulators: thread (g, t) has rows
 * g + 8 r and keys 2t, 2t + 1, 2t + 8, 2t + 9. fp32 keeps that layout on the CUDA cores.
 *
 * Of strips with keys that some rows do not see, V is searched for infinities and NaNs;
 * one that has any is multiplied so that it changes no row that does not see them
 * (product.h; fp32 leaves out what is not seen).
 */
#pragma once

#include "kernels/cuda/common/logits.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/swizzle.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/cp_async.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm80/paged_walk.h"
#include "kernels/cuda/sm80/pair.h"
#include "kernels/cuda/sm80/product.h"
#include "kernels/cuda/sm80/softmax.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* What all rows of a part share about one row; 32 bytes of shared memory. */
struct fa_paged_fact {
	int32_t low, high; /* keys [low, high) are seen, apart from trees */
	int32_t position;  /* among the keys */
	int32_t token;     /* of the sequence's new ones */
	float slope;       /* of ALiBi, in units of ln 2 */
	float max, sum;    /* of the segment, then of the part */
	float unused;
};

/* Which of its 16 scores of a strip a thread's rows see: bit 4 r + i is row g + 8 r and
 * key i of 2t, 2t + 1, 2t + 8, 2t + 9. Takes the place of fa_sm80_sight. */
struct fa_paged_sight {
	uint32_t bits;

	/* @offset: from key 2t on. */
	__device__ __forceinline__ bool sees(int r, int offset) const
	{
		return bits >> (4 * r + offset / 8 * 2 + offset % 2) & 1;
	}
};

/* dots = Q K^T in fp32. @q and @k: the tiles. */
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

/* As fa_sm80_accumulate, in fp32. @v: the tile. */
template <class C, bool ISOLATE>
__device__ __forceinline__ void
fa_paged_accumulate_f32(struct fa_sm80_rows<C> &rows, const float (&dots)[C::ATOMS][2][4],
                        uint32_t v, const struct fa_paged_sight &sight)
{
	const uint32_t lane = threadIdx.x % 32, t = lane % 4;
	float p[2][4]; /* [row][key]; -1 where it is not seen, if ISOLATE */

#pragma unroll
	for (int r = 0; r < 2; r++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			p[r][i] = fa_ex2(dots[0][i / 2][2 * r + i % 2] + rows.offset[r]);
			rows.sum[r] += p[r][i];
			if (ISOLATE && !sight.sees(r, i / 2 * 8 + i % 2))
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

/* O += exp(dots + offset) V, and the sums with it. @v as in fa_paged_decode(). */
template <class C, bool ISOLATE>
__device__ __forceinline__ void
fa_paged_accumulate(struct fa_sm80_rows<C> &rows, const float (&dots)[C::ATOMS][2][4], uint32_t v,
                    const struct fa_sm80_pair<C> &alone, const struct fa_paged_sight &sight)
{
	if constexpr (C::F32)
		fa_paged_accumulate_f32<C, ISOLATE>(rows, dots, v, sight);
	else
		fa_sm80_accumulate<C, ISOLATE>(rows, dots, 1, v, alone, sight);
}

/* Whether all of a strip's V is finite, the same in all lanes. */
template <class C> __device__ __forceinline__ bool fa_paged_is_finite(uint32_t v_tile)
{
	bool finite = true;

#pragma unroll 4
	for (uint32_t at = threadIdx.x % 32 * 16; at < 16 * C::PITCH_V; at += 512) {
		const uint4 value = fa_ld_shared_v4(v_tile + at);

		/* 0 times what is finite is 0. */
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

__device__ __forceinline__ struct fa_paged_fact fa_paged_fact_get(uint32_t facts, uint32_t row)
{
	const uint4 a = fa_ld_shared_v4(facts + row * 32);
	struct fa_paged_fact fact;

	fact.low = a.x;
	fact.high = a.y;
	fact.position = a.z;
	fact.token = a.w;
	fact.slope = __uint_as_float(fa_ld_shared(facts + row * 32 + 16));
	return fact;
}

/* ALiBi, trees and masks: what depends on where a key stands. Returns what rows see. */
template <class C>
__device__ __forceinline__ struct fa_paged_sight
fa_paged_place(float (&dots)[C::ATOMS][2][4], const struct fa_cuda_paged_attention &args,
               const struct fa_cuda_paged_item &item, uint32_t facts, int32_t token)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const int32_t old = (int32_t)item.n_k - (int32_t)item.n_q;
	const bool tree = item.tree_start != FA_CUDA_PAGED_NO_TREE;
	const uint32_t words = (item.n_q + 31) / 32;
	struct fa_paged_sight sight = { 0 };

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const struct fa_paged_fact fact = fa_paged_fact_get(facts, g + 8 * r);
		const uint32_t *mask = args.tree + item.tree_start + fact.token * words;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int32_t key = token + 2 * t + i % 2 + i / 2 * 8;
			float &dot = dots[r / 2][i / 2][r % 2 * 2 + i % 2];
			bool sees = key >= fact.low && key < fact.high;
			int32_t position = key;

			if (tree && key >= old && sees) {
				const uint32_t node = key - old;

				sees = mask[node / 32] >> node % 32 & 1;
				if (args.positions)
					position = args.positions[item.first_q + node];
				sees = sees &&
				       position >= fact.position - args.attention.window_left &&
				       position <= fact.position + args.tree_right;
			}
			dot -= fact.slope * fabsf((float)(position - fact.position));
			dot = sees ? dot : -INFINITY;
			sight.bits |= (uint32_t)sees << (4 * r + i);
		}
	}
	return sight;
}

/* ---- the ends of a segment */

/* Q of a part, and what is to be known of its rows. All threads; the caller's barrier
 * makes it visible. */
template <class C>
__device__ __forceinline__ void fa_paged_begin(const struct fa_cuda_paged_attention &args,
                                               const struct fa_paged_walk &walk, char *shared)
{
	const struct fa_cuda_attention &p = args.attention;
	const struct fa_cuda_paged_item &item = walk.item;
	const uint32_t address = fa_shared_address(shared);
	const uint32_t first_row = walk.row(args, C::ROWS), head = walk.kv_head(args) * p.group;
	const uint32_t rows = item.n_q * p.group;
	constexpr uint32_t chunks = C::DIM * C::BYTES / 16;
	constexpr uint32_t chunk_elements = 16 / C::BYTES;

	for (uint32_t i = threadIdx.x; i < C::ROWS * chunks; i += C::THREADS) {
		const uint32_t row = i / chunks, chunk = i % chunks, at = first_row + row;
		const char *source = (const char *)p.q.data +
		                     (item.first_q + at / p.group) * p.q.stride_token +
		                     (head + at % p.group) * p.q.stride_head + chunk * 16;
		uint4 value = make_uint4(0, 0, 0, 0);

		if (at < rows && (int32_t)(chunk * chunk_elements) < p.head_dim) {
			if (p.aligned) {
				value = *(const uint4 *)source;
			} else if (C::F32) {
				const uint32_t *words = (const uint32_t *)source;

				value = make_uint4(words[0], words[1], words[2], words[3]);
			} else {
				const uint16_t *halves = (const uint16_t *)source;

				value.x = halves[0] | (uint32_t)halves[1] << 16;
				value.y = halves[2] | (uint32_t)halves[3] << 16;
				value.z = halves[4] | (uint32_t)halves[5] << 16;
				value.w = halves[6] | (uint32_t)halves[7] << 16;
			}
		}
		fa_st_shared_v4(address + C::Q +
		                        (C::F32 ? row * C::PITCH + chunk * 16
		                                : fa_swizzle<C::DIM>::offset(row, chunk)),
		                value);
	}
	if (threadIdx.x < C::ROWS) {
		struct fa_paged_fact *fact = (struct fa_paged_fact *)(shared + C::FACTS) +
		                             threadIdx.x;
		/* Rows past the last do as it does. */
		const uint32_t at = min(first_row + threadIdx.x, rows - 1);
		const int32_t token = at / p.group;
		const bool tree = item.tree_start != FA_CUDA_PAGED_NO_TREE;
		int32_t position = token + (int32_t)item.n_k - (int32_t)item.n_q;

		if (tree && args.positions)
			position = args.positions[item.first_q + token];
		fact->token = token;
		fact->position = position;
		fact->low = max((int32_t)item.first, position - p.window_left);
		/* A tree's new tokens are judged one by one. */
		fact->high = tree ? (int32_t)item.n_k
		                  : min((int32_t)item.n_k, position + p.window_right + 1);
		fact->slope = p.alibi_slopes ? p.alibi_slopes[head + at % p.group] * 1.44269504f
		                             : 0;
	}
}

/* Where a part's row goes. */
struct fa_paged_target {
	char *out;  /* its first element, or NULL */
	float *lse; /* or NULL */
	uint32_t head;
};

template <class C>
__device__ __forceinline__ struct fa_paged_target
fa_paged_target_of(const struct fa_cuda_paged_attention &args, const struct fa_paged_walk &walk,
                   uint32_t row)
{
	const struct fa_cuda_attention &p = args.attention;
	const uint32_t at = walk.row(args, C::ROWS) + row;
	const int64_t token = (int64_t)walk.item.first_q + at / p.group;
	struct fa_paged_target target = { NULL, NULL, 0 };

	if (at >= walk.item.n_q * p.group)
		return target;
	target.head = walk.kv_head(args) * p.group + at % p.group;
	target.out = (char *)p.out.data + token * p.out.stride_token +
	             target.head * p.out.stride_head;
	if (p.lse && walk.slice(args) == 0)
		target.lse = p.lse + token * p.lse_stride_token + target.head * p.lse_stride_head;
	return target;
}

/* From a row's maximum and sum to the factor of its O; stores the LSE if @lse. */
__device__ __forceinline__ float fa_paged_factor(const struct fa_cuda_attention &p, uint32_t head,
                                                 float max, float sum, float *lse)
{
	float factor = sum == 0 ? 0 : 1 / sum;

	/* As fa_sm80_finish. */
	if (p.sinks) {
		const float sink = p.sinks[head] * 1.44269504f;
		const float top = fmaxf(max, sink);
		const float shrink = fa_ex2(max - top);

		if (sink != -INFINITY) {
			sum = sum * shrink + fa_ex2(sink - top);
			factor = shrink / sum;
			max = top;
		}
	}
	if (lse)
		*lse = sum == 0 ? -INFINITY : (max + fa_lg2(sum)) * 0.693147181f;
	return factor;
}

template <class C>
__device__ __forceinline__ void fa_paged_store(const struct fa_cuda_paged_attention &args,
                                               char *out, uint32_t column, float x, float y)
{
	char *const to = out + column * C::BYTES;

	if ((int32_t)column >= args.attention.head_dim_v)
		return;
	if constexpr (C::F32) {
		((float *)to)[0] = x;
		((float *)to)[1] = y;
	} else {
		const uint32_t both = fa_pack<typename C::T>(x, y);

		if (args.attention.aligned) {
			*(uint32_t *)to = both;
		} else {
			((uint16_t *)to)[0] = (uint16_t)both;
			((uint16_t *)to)[1] = (uint16_t)(both >> 16);
		}
	}
}

/* The last block of a part adds up the shares of blocks [first, last]. All threads. */
template <class C>
__device__ __forceinline__ void fa_paged_reduce(const struct fa_cuda_paged_attention &args,
                                                const struct fa_paged_walk &walk, uint32_t first,
                                                uint32_t last)
{
	constexpr uint32_t pairs = C::DIM_V / 2;
	/* Only the first block may have had another part before this one. */
	const uint32_t start = first * args.tiles_each + min(first, args.tiles_extra);
	const uint32_t first_place = 2 * first + (start != walk.tile);

	for (uint32_t i = threadIdx.x; i < C::ROWS * pairs; i += C::THREADS) {
		const uint32_t row = i / pairs, pair = i % pairs;
		const struct fa_paged_target target = fa_paged_target_of<C>(args, walk, row);
		float max = -FLT_MAX, sum = 0, x = 0, y = 0;

		if (!target.out)
			continue;
#pragma unroll 4
		for (uint32_t block = first; block <= last; block++) {
			const uint32_t place = block == first ? first_place : 2 * block;

			max = fmaxf(max, __ldcg(&args.partial_sums[(place * C::ROWS + row) * 2]));
		}
#pragma unroll 4
		for (uint32_t block = first; block <= last; block++) {
			const uint32_t place = block == first ? first_place : 2 * block;
			const uint32_t at = place * C::ROWS + row;
			const float2 share = __ldcg((const float2 *)&args.partial_sums[at * 2]);
			const float2 out = __ldcg(
				(const float2 *)&args.partials[(size_t)at * C::DIM_V + 2 * pair]);
			const float weight = fa_ex2(share.x - max);

			sum += weight * share.y;
			x += weight * out.x;
			y += weight * out.y;
		}

		const float factor = fa_paged_factor(args.attention, target.head, max, sum,
		                                     pair == 0 ? target.lse : NULL);

		fa_paged_store<C>(args, target.out, walk.slice(args) * C::DIM_V + 2 * pair,
		                  x * factor, y * factor);
	}
}

/* Counts this block in; whether it is the last of @n. One thread. */
__device__ __forceinline__ bool fa_paged_arrive(unsigned long long *counter, uint32_t epoch,
                                                uint32_t n)
{
	unsigned long long before = fa_ld_relaxed(counter), seen, after;

	for (;;) {
		after = (before >> 32 == epoch ? before : (unsigned long long)epoch << 32) + 1;
		seen = fa_atomic_cas(counter, before, after);
		if (seen == before)
			return (uint32_t)after == n;
		before = seen;
	}
}

/* Brings the warps' rows together and finishes the segment. All threads. */
template <class C>
__device__ __forceinline__ void fa_paged_end(const struct fa_cuda_paged_attention &args,
                                             const struct fa_paged_walk &walk,
                                             struct fa_sm80_rows<C> &rows, char *shared)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	float2 *const stats = (float2 *)(shared + C::STATS); /* [warp][row] */
	float *const merge = (float *)(shared + C::MERGE);
	struct fa_paged_fact *const facts = (struct fa_paged_fact *)(shared + C::FACTS);
	const uint32_t place = 2 * blockIdx.x + !walk.first;
	constexpr uint32_t pairs = C::MERGE_COLUMNS / 2;

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 1);
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 2);
		if (t == 0)
			stats[warp * C::ROWS + g + 8 * r] = make_float2(-rows.offset[r],
			                                                rows.sum[r]);
	}
	__syncthreads(); /* the stats are there, and nobody reads Q or the facts */

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
		if (walk.whole) {
			const struct fa_paged_target target = fa_paged_target_of<C>(args, walk,
			                                                            row);

			facts[row].sum = target.out ? fa_paged_factor(args.attention, target.head,
			                                              max, sum, target.lse)
			                            : 0;
		} else {
			float *const sums = &args.partial_sums[(place * C::ROWS + row) * 2];

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

				*(float2 *)&merge[(warp * C::ROWS + g + 8 * r) * C::MERGE_PITCH +
				                  8 * j + 2 * t] = make_float2(out[r % 2 * 2],
				                                               out[r % 2 * 2 + 1]);
			}
		__syncthreads(); /* the columns are there, and the factors */
		for (uint32_t i = threadIdx.x; i < C::ROWS * pairs; i += C::THREADS) {
			const uint32_t row = i / pairs, column = i % pairs * 2;
			const struct fa_paged_target target = fa_paged_target_of<C>(args, walk,
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
			if (walk.whole) {
				const float factor = facts[row].sum;

				fa_paged_store<C>(args, target.out,
				                  walk.slice(args) * C::DIM_V +
				                          step * C::MERGE_COLUMNS + column,
				                  x * factor, y * factor);
			} else {
				*(float2 *)&args
					 .partials[(size_t)(place * C::ROWS + row) * C::DIM_V +
				                   step * C::MERGE_COLUMNS + column] =
					make_float2(x, y);
			}
		}
		__syncthreads(); /* nobody reads the columns */
	}
	if (walk.whole)
		return;

	/* The barrier has put all shares before this thread's fence. */
	const uint32_t first = fa_paged_block_of(args, walk.tile);
	const uint32_t last = fa_paged_block_of(args, walk.tile + walk.item.tiles - 1);
	bool *const is_last = (bool *)(shared + C::STATS);

	if (threadIdx.x == 0) {
		__threadfence();
		*is_last = fa_paged_arrive(&args.counters[first], args.epoch, last - first + 1);
		__threadfence();
	}
	__syncthreads(); /* the answer is there */
	if (*is_last)
		fa_paged_reduce<C>(args, walk, first, last);
	__syncthreads(); /* everybody has read it */
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
	const struct fa_sm80_pair<C> alone(0, 0);
	struct fa_logits_rich logits(p, 0);
	struct fa_paged_loader<C> loader;
	struct fa_paged_walk walk;

	/* This lane's ldmatrix addresses: of Q, of K's and V's place in a stage. */
	if constexpr (!C::F32) {
		q += fa_swizzle<C::DIM>::offset(lane % 16, lane / 16);
		k += fa_swizzle<C::DIM>::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
		v += fa_swizzle<C::DIM_V>::offset(lane % 16, lane / 16);
	}
	logits.slope = 0; /* rows have their own: fa_paged_place() */

	loader.start(args, shared);
#pragma unroll
	for (int i = 0; i < C::STAGES - 1; i++)
		loader.step(args);
	walk.start(args, blockIdx.x);

	do {
		const struct fa_cuda_paged_item &item = walk.item;
		const uint32_t facts = shared + C::FACTS;
		struct fa_sm80_rows<C> rows;

		fa_paged_begin<C>(args, walk, shared_memory);
		__syncthreads(); /* Q and the facts are there */

		fa_sm80_clear<C>(rows);

		/* Strips of which every row sees every key need no mask: between where the
		 * last row's window begins and where the first row's ends. */
		const struct fa_paged_fact top = fa_paged_fact_get(facts, 0);
		const struct fa_paged_fact bottom = fa_paged_fact_get(facts, C::ROWS - 1);
		const bool tree = item.tree_start != FA_CUDA_PAGED_NO_TREE;
		int32_t clear_begin = bottom.low, clear_end = top.high;

		if (tree) {
			/* Rows' positions are in no order; a window hides all from this on. */
			clear_begin = p.window_left < FA_CUDA_WINDOW_MAX ? (int32_t)item.n_k
			                                                 : (int32_t)item.first;
			clear_end = (int32_t)item.n_k - (int32_t)item.n_q;
		}

#pragma unroll 1
		for (int32_t token = walk.begin + warp * FA_CUDA_PAGED_STRIP; token < walk.end;
		     token += C::WARPS * FA_CUDA_PAGED_STRIP) {
			/* Is there a key that some row does not see? */
			const bool hides = token < clear_begin ||
			                   token + FA_CUDA_PAGED_STRIP > clear_end;
			struct fa_paged_sight sight = { ~0u };
			float dots[C::ATOMS][2][4];

			fa_cp_async_wait<C::STAGES - 2>();
			__syncwarp(); /* the strip is there, and all are done with the one before */
			loader.step(args);

			if constexpr (C::F32)
				fa_paged_dots_f32<C>(dots, q, stage + k);
			else
				fa_sm80_dots<C, C::DIM / 16>(dots, q, stage + k);
			logits.apply(dots, 0);
			if (hides || p.alibi_slopes)
				sight = fa_paged_place<C>(dots, args, item, facts, token);
			fa_sm80_raise<C>(rows, dots, 1, alone);
			if (hides && !fa_paged_is_finite<C>(stage + C::K_BYTES))
				fa_paged_accumulate<C, true>(rows, dots, stage + v, alone, sight);
			else
				fa_paged_accumulate<C, false>(rows, dots, stage + v, alone, sight);

			stage += C::STRIP_BYTES;
			if (stage == ring + C::STAGES * C::STRIP_BYTES)
				stage = ring;
		}
		fa_paged_end<C>(args, walk, rows, shared_memory);
	} while (walk.next(args));
}
