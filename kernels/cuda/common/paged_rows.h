/*
 * The rows of a part: what they see, their Q, and where their output goes. C is the kernel's
 * config; besides that of sm80/paged_load.h it has
 *   JOINED    threads that finish a part, the first of the block; join() is their barrier
 *   key(t, i) the token of score i = 0 to 3 of a row, in threads with threadIdx.x % 4 == t
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_segment.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* 32 bytes of shared memory. */
struct fa_paged_row {
	int32_t low, high; /* sees keys [low, high), apart from trees */
	int32_t position;  /* among the keys */
	int32_t token;     /* among the sequence's new ones; with a pattern: the head's column */
	float slope;       /* of ALiBi, in units of ln 2 */
	union {
		float factor;
		uint32_t head; /* of all query heads */
	};
	char *out;
};

/* A thread has 16 scores of a strip of keys. Bit 4 r + i: row g + 8 r sees the i-th of keys 2t, 2t
 * + 1, 2t + 8, 2t + 9. Replaces fa_warp_visibility. */
struct fa_paged_visibility {
	uint32_t bits;

	__device__ __forceinline__ bool sees(int r, int offset) const
	{
		return bits >> (4 * r + offset / 8 * 2 + offset % 2) & 1;
	}
};

__device__ __forceinline__ struct fa_paged_row fa_paged_row_get(uint32_t rows_info, uint32_t row)
{
	const uint4 a = fa_ld_shared_v4(rows_info + row * 32);
	struct fa_paged_row info;

	info.low = a.x;
	info.high = a.y;
	info.position = a.z;
	info.token = a.w;
	info.slope = __uint_as_float(fa_ld_shared(rows_info + row * 32 + 16));
	return info;
}

/* Returns the new token of row @at of an item's rows of one KV head. */
template <class C>
__device__ __forceinline__ uint32_t fa_paged_token_of(uint32_t at, uint32_t group)
{
	if (!C::ROWS_IN_FP32)
		return at / group;
	/* Below 2^20 the quotient is off by less than the added 1 / (2 group). */
	return (uint32_t)(((float)at + 0.5f) * fa_rcp((float)group));
}

template <class C>
__device__ __forceinline__ struct fa_paged_row
fa_paged_row_of(const struct fa_cuda_paged_attention &args, const fa_paged_segment_of<C> &segment,
                uint32_t row)
{
	const struct fa_cuda_attention &p = args.attention;
	const struct fa_cuda_paged_item &item = segment.item;
	const uint32_t at = min(segment.row(args, C::ROWS) + row, item.n_q * p.group - 1);
	const bool tree = item.tree_start != FA_CUDA_PAGED_NO_TREE;
	struct fa_paged_row info;

	info.token = fa_paged_token_of<C>(at, p.group);
	info.position = info.token + (int32_t)item.n_k - (int32_t)item.n_q;
	if (tree && args.positions)
		info.position = args.positions[item.first_q + info.token];
	info.low = max((int32_t)item.first, info.position - p.window_left);
	/* Masks decide about a tree's new tokens. */
	info.high = tree ? (int32_t)item.n_k
	                 : min((int32_t)item.n_k, info.position + p.window_right + 1);
	/* Of a prefix a row sees what is behind it, too. */
	if constexpr (C::OWN)
		info.high = min(max(info.high, (int32_t)item.append),
		                info.position + fa_own_of(args).right + 1);
	if constexpr (C::SPLIT_ITEMS) {
		if (segment.split.n_suffixes > 0) {
			info.low = (int32_t)item.first;
			info.high = (int32_t)item.n_k;
		}
	}
	if constexpr (fa_own_patterns<C>)
		if (fa_own_of(args).pattern_strips)
			info.token =
				(int32_t)fa_own_of(args)
					.columns[segment.kv_head(args) * p.group + at % p.group];
	info.slope = p.alibi_slopes
	                     ? p.alibi_slopes[segment.kv_head(args) * p.group + at % p.group] *
	                               1.44269504f
	                     : 0;
	return info;
}

/* Strips in this range need no mask: all tokens exist, and every row sees them. */
struct fa_paged_unmasked {
	int32_t begin, end;

	/* True if some row does not see some key of the strip. */
	__device__ __forceinline__ bool hides(int32_t token) const
	{
		return token < begin || token + FA_CUDA_PAGED_STRIP > end;
	}
};

template <class C>
__device__ __forceinline__ struct fa_paged_unmasked
fa_paged_unmasked_of(const struct fa_cuda_paged_attention &args,
                     const struct fa_cuda_paged_item &item, uint32_t rows_info)
{
	const struct fa_paged_row top = fa_paged_row_get(rows_info, 0);
	const struct fa_paged_row bottom = fa_paged_row_get(rows_info, C::ROWS - 1);
	struct fa_paged_unmasked clear = { max(bottom.low, (int32_t)item.begin), top.high };

	/* The first key from which on all blocks are local to all rows, or a later one. */
	if constexpr (fa_own_patterns<C>)
		if (fa_own_of(args).pattern_strips)
			clear.begin = max(clear.begin,
			                  bottom.position - (fa_own_of(args).pattern_local - 1) *
			                                            fa_own_of(args).pattern_tokens);
	if (item.tree_start != FA_CUDA_PAGED_NO_TREE) {
		/* Positions are in no order; a window may hide anything. */
		clear.begin = args.attention.window_left < FA_CUDA_WINDOW_MAX ? (int32_t)item.n_k
		                                                              : (int32_t)item.first;
		clear.end = (int32_t)item.n_k - (int32_t)item.n_q;
	}
	return clear;
}

/* Applies ALiBi, trees and masks; returns what rows see. TREES: the item may have one. */
template <class C, bool TREES>
__device__ __forceinline__ struct fa_paged_visibility
fa_paged_mask_scores_as(float (&dots)[C::ATOMS][2][4], const struct fa_cuda_paged_attention &args,
                        const struct fa_cuda_paged_item &item, uint32_t rows_info, int32_t token)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const int32_t old = (int32_t)item.n_k - (int32_t)item.n_q;
	const bool tree = TREES && item.tree_start != FA_CUDA_PAGED_NO_TREE;
	const uint32_t words = (item.n_q + 31) / 32;
	struct fa_paged_visibility visible = { 0 };
	struct fa_own_block block = { 0, INT32_MAX };

	if constexpr (fa_own_patterns<C>)
		if (fa_own_of(args).pattern_strips)
			block = fa_own_block_of(fa_own_of(args), token);
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const struct fa_paged_row info = fa_paged_row_get(rows_info, g + 8 * r);
		const uint32_t *mask = args.tree + item.tree_start + info.token * words;
		const bool in_pattern = !fa_own_patterns<C> || block.end > info.position ||
		                        block.column == info.token;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int32_t key = token + C::key(t, i);
			float &dot = dots[r / 2][i / 2][r % 2 * 2 + i % 2];
			bool sees = key >= info.low && key < info.high && in_pattern;
			int32_t position = key;

			if (tree && key >= old && sees) {
				const uint32_t node = key - old;

				sees = mask[node / 32] >> node % 32 & 1;
				if (args.positions)
					position = args.positions[item.first_q + node];
				sees = sees &&
				       position >= info.position - args.attention.window_left &&
				       position <= info.position + args.tree_right;
			}
			dot -= info.slope * fabsf((float)(position - info.position));
			dot = sees ? dot : -INFINITY;
			visible.bits |= (uint32_t)sees << (4 * r + i);
		}
	}
	return visible;
}

/* Kept apart, as all sequences would wait for the fetch of this long code. (At d64, two fragments
 * leave no registers for both.) */
template <class C>
__device__ __forceinline__ struct fa_paged_visibility
fa_paged_mask_scores(float (&dots)[C::ATOMS][2][4], const struct fa_cuda_paged_attention &args,
                     const struct fa_cuda_paged_item &item, uint32_t rows_info, int32_t token)
{
	constexpr bool apart = C::DIM != 64 || C::ATOMS == 1;

	if (apart && __builtin_expect(item.tree_start == FA_CUDA_PAGED_NO_TREE, 1))
		return fa_paged_mask_scores_as<C, false>(dots, args, item, rows_info, token);
	return fa_paged_mask_scores_as<C, true>(dots, args, item, rows_info, token);
}

template <class C>
__device__ __forceinline__ const char *fa_paged_q_row(const struct fa_cuda_paged_attention &args,
                                                      const fa_paged_segment_of<C> &segment,
                                                      uint32_t row)
{
	const struct fa_cuda_attention &p = args.attention;
	const uint32_t at = segment.row(args, C::ROWS) + row,
		       head = segment.kv_head(args) * p.group;
	const uint32_t of_item = fa_paged_token_of<C>(at, p.group);
	uint32_t token = segment.item.first_q + of_item;

	if (at >= segment.item.n_q * p.group)
		return NULL;
	if constexpr (C::SPLIT_ITEMS) {
		if (segment.split.n_suffixes > 0)
			token = args.tokens[token];
	}
	return (const char *)p.q.data + token * p.q.stride_token +
	       (head + (at - of_item * p.group)) * p.q.stride_head;
}

template <class C, bool ALIGNED = false>
__device__ __forceinline__ uint4 fa_paged_q_chunk(const struct fa_cuda_attention &p,
                                                  const char *row, uint32_t chunk)
{
	const char *const from = row + chunk * 16;

	if (!row || (int32_t)(chunk * (16 / C::BYTES)) >= p.head_dim)
		return make_uint4(0, 0, 0, 0);
	if (ALIGNED || p.aligned)
		return *(const uint4 *)from;
	if (C::BYTES == 4) {
		const uint32_t *words = (const uint32_t *)from;

		return make_uint4(words[0], words[1], words[2], words[3]);
	}

	const uint16_t *halves = (const uint16_t *)from;

	return make_uint4(
		halves[0] | (uint32_t)halves[1] << 16, halves[2] | (uint32_t)halves[3] << 16,
		halves[4] | (uint32_t)halves[5] << 16, halves[6] | (uint32_t)halves[7] << 16);
}

struct fa_paged_out_row {
	char *out; /* its first element, or NULL */
	float *lse;
	uint32_t head;
};

/* @first_q: the item's first row in dense tensors. */
__device__ __forceinline__ struct fa_paged_out_row
fa_paged_out_row_at(const struct fa_cuda_paged_attention &args, uint32_t first_q, uint32_t at,
                    uint32_t kv_head, uint32_t slice)
{
	const struct fa_cuda_attention &p = args.attention;
	const int64_t token = (int64_t)first_q + at / p.group;
	struct fa_paged_out_row target = { NULL, NULL, 0 };

	target.head = kv_head * p.group + at % p.group;
	target.out = (char *)p.out.data + token * p.out.stride_token +
	             target.head * p.out.stride_head;
	if (p.lse && slice == 0)
		target.lse = p.lse + token * p.lse_stride_token + target.head * p.lse_stride_head;
	return target;
}

template <class C>
__device__ __forceinline__ struct fa_paged_out_row
fa_paged_out_row_of(const struct fa_cuda_paged_attention &args,
                    const fa_paged_segment_of<C> &segment, uint32_t row)
{
	const uint32_t at = segment.row(args, C::ROWS) + row;

	if (at >= segment.item.n_q * args.attention.group)
		return { NULL, NULL, 0 };
	return fa_paged_out_row_at(args, segment.item.first_q, at, segment.kv_head(args),
	                           segment.slice(args));
}

/* Returns the factor of a row's O. Stores the LSE if @lse. */
__device__ __forceinline__ float fa_paged_factor(const struct fa_cuda_attention &p, uint32_t head,
                                                 float max, float sum, float *lse)
{
	float factor = sum == 0 ? 0 : 1 / sum;

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
                                               char *out, uint32_t column, float x, float y,
                                               float factor)
{
	char *const to = out + column * C::BYTES;

	if ((int32_t)column >= args.attention.head_dim_v)
		return;
	if constexpr (C::F32) {
		((float *)to)[0] = fa_mean_f32(x, factor);
		((float *)to)[1] = fa_mean_f32(y, factor);
	} else {
		uint32_t both = fa_pack<typename C::T>(x * factor, y * factor);

		if constexpr (C::QUANTISED)
			if (((const struct fa_cuda_paged_attention_quantised &)args)
			            .quantised.dtype == FA_STORE_DTYPE_BF16)
				both = fa_pack<fa_bf16>(x * factor, y * factor);

		if (args.attention.aligned) {
			*(uint32_t *)to = both;
		} else {
			((uint16_t *)to)[0] = (uint16_t)both;
			((uint16_t *)to)[1] = (uint16_t)(both >> 16);
		}
	}
}
