/*
 * A part of a sequence (paged_walk.h), whatever a kernel's way through it: what its rows see,
 * where they go, and how the shares that blocks have of it become one. C is the kernel's
 * config; besides what paged_walk.h's has it gives
 *   JOINED    threads that finish a part, the first of the block, and join() their barrier
 *   key(t, i) which of the tokens that a warp takes at a time scores i = 0 to 3 of a row
 *             are, in the threads with threadIdx.x % 4 == t
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm80/paged_walk.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* What all rows of a part share about one row; 32 bytes of shared memory. */
struct fa_paged_fact {
	int32_t low, high; /* keys [low, high) are seen, apart from trees */
	int32_t position;  /* among the keys */
	int32_t token;     /* of the sequence's new ones */
	float slope;       /* of ALiBi, in units of ln 2 */
	union {
		float factor;  /* of O at the end */
		uint32_t head; /* of all query heads */
	};
	char *out; /* where the row goes; sm90/paged_epilogue.h */
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

/* Of which new token row @at of an item is, of its rows of one KV head. */
template <class C>
__device__ __forceinline__ uint32_t fa_paged_token_of(uint32_t at, uint32_t group)
{
	if (!C::ROWS_IN_FP32)
		return at / group;
	/* Below 2^20 the quotient is off by less than 1 / (2 group), by which it is moved up. A
	 * division of any numbers has five times the code, and code takes time to come. */
	return (uint32_t)(((float)at + 0.5f) * fa_rcp((float)group));
}

/* What is to be known of a part's row. */
template <class C>
__device__ __forceinline__ struct fa_paged_fact
fa_paged_fact_of(const struct fa_cuda_paged_attention &args, const fa_paged_walk_of<C> &walk,
                 uint32_t row)
{
	const struct fa_cuda_attention &p = args.attention;
	const struct fa_cuda_paged_item &item = walk.item;
	/* Rows past the last do as it does. */
	const uint32_t at = min(walk.row(args, C::ROWS) + row, item.n_q * p.group - 1);
	const bool tree = item.tree_start != FA_CUDA_PAGED_NO_TREE;
	struct fa_paged_fact fact;

	fact.token = fa_paged_token_of<C>(at, p.group);
	fact.position = fact.token + (int32_t)item.n_k - (int32_t)item.n_q;
	if (tree && args.positions)
		fact.position = args.positions[item.first_q + fact.token];
	fact.low = max((int32_t)item.first, fact.position - p.window_left);
	/* A tree's new tokens are judged one by one. */
	fact.high = tree ? (int32_t)item.n_k
	                 : min((int32_t)item.n_k, fact.position + p.window_right + 1);
	if constexpr (C::PIECES) {
		if (walk.piece.n_tails > 0) {
			fact.low = (int32_t)item.first;
			fact.high = (int32_t)item.n_k;
		}
	}
	fact.slope = p.alibi_slopes ? p.alibi_slopes[walk.kv_head(args) * p.group + at % p.group] *
	                                      1.44269504f
	                            : 0;
	return fact;
}

/* Strips between these need no mask: all of their tokens are there, and every row sees them. */
struct fa_paged_clear {
	int32_t begin, end;

	/* Whether there is a key in the strip from @token on that some row does not see. */
	__device__ __forceinline__ bool hides(int32_t token) const
	{
		return token < begin || token + FA_CUDA_PAGED_STRIP > end;
	}
};

/* From where the last row's window begins to where the first row's ends. */
template <class C>
__device__ __forceinline__ struct fa_paged_clear
fa_paged_clear_of(const struct fa_cuda_paged_attention &args, const struct fa_cuda_paged_item &item,
                  uint32_t facts)
{
	const struct fa_paged_fact top = fa_paged_fact_get(facts, 0);
	const struct fa_paged_fact bottom = fa_paged_fact_get(facts, C::ROWS - 1);
	struct fa_paged_clear clear = { max(bottom.low, (int32_t)item.begin), top.high };

	if (item.tree_start != FA_CUDA_PAGED_NO_TREE) {
		/* Rows' positions are in no order; a window hides all from this on. */
		clear.begin = args.attention.window_left < FA_CUDA_WINDOW_MAX ? (int32_t)item.n_k
		                                                              : (int32_t)item.first;
		clear.end = (int32_t)item.n_k - (int32_t)item.n_q;
	}
	return clear;
}

/* ALiBi, trees and masks: what depends on where a key stands. Returns what rows see. TREES: the
 * item may have one. */
template <class C, bool TREES>
__device__ __forceinline__ struct fa_paged_sight
fa_paged_place_as(float (&dots)[C::ATOMS][2][4], const struct fa_cuda_paged_attention &args,
                  const struct fa_cuda_paged_item &item, uint32_t facts, int32_t token)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const int32_t old = (int32_t)item.n_k - (int32_t)item.n_q;
	const bool tree = TREES && item.tree_start != FA_CUDA_PAGED_NO_TREE;
	const uint32_t words = (item.n_q + 31) / 32;
	struct fa_paged_sight sight = { 0 };

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		const struct fa_paged_fact fact = fa_paged_fact_get(facts, g + 8 * r);
		const uint32_t *mask = args.tree + item.tree_start + fact.token * words;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int32_t key = token + C::key(t, i);
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

/* The same. Code for trees is long, and lies elsewhere: nearly every sequence comes through
 * here at its end, once, and waits for what has to be fetched of it. (At d64 two fragments leave
 * no registers for both.) */
template <class C>
__device__ __forceinline__ struct fa_paged_sight
fa_paged_place(float (&dots)[C::ATOMS][2][4], const struct fa_cuda_paged_attention &args,
               const struct fa_cuda_paged_item &item, uint32_t facts, int32_t token)
{
	constexpr bool apart = C::DIM != 64 || C::ATOMS == 1;

	if (apart && __builtin_expect(item.tree_start == FA_CUDA_PAGED_NO_TREE, 1))
		return fa_paged_place_as<C, false>(dots, args, item, facts, token);
	return fa_paged_place_as<C, true>(dots, args, item, facts, token);
}

/* Where a part's row of Q begins; NULL: there is no such row. */
template <class C>
__device__ __forceinline__ const char *fa_paged_q_row(const struct fa_cuda_paged_attention &args,
                                                      const fa_paged_walk_of<C> &walk, uint32_t row)
{
	const struct fa_cuda_attention &p = args.attention;
	const uint32_t at = walk.row(args, C::ROWS) + row, head = walk.kv_head(args) * p.group;
	const uint32_t of_item = fa_paged_token_of<C>(at, p.group);
	uint32_t token = walk.item.first_q + of_item;

	if (at >= walk.item.n_q * p.group)
		return NULL;
	if constexpr (C::PIECES) {
		if (walk.piece.n_tails > 0)
			token = args.tokens[token];
	}
	return (const char *)p.q.data + token * p.q.stride_token +
	       (head + (at - of_item * p.group)) * p.q.stride_head;
}

/* 16 bytes of a row of Q, or zeros where there is nothing. ALIGNED: rows are known to be. */
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

/* Where a part's row goes. */
struct fa_paged_target {
	char *out;  /* its first element, or NULL */
	float *lse; /* or NULL */
	uint32_t head;
};

/* Of row @at of those that an item has of a KV head. @first_q: the item's. */
__device__ __forceinline__ struct fa_paged_target
fa_paged_target_at(const struct fa_cuda_paged_attention &args, uint32_t first_q, uint32_t at,
                   uint32_t kv_head, uint32_t slice)
{
	const struct fa_cuda_attention &p = args.attention;
	const int64_t token = (int64_t)first_q + at / p.group;
	struct fa_paged_target target = { NULL, NULL, 0 };

	target.head = kv_head * p.group + at % p.group;
	target.out = (char *)p.out.data + token * p.out.stride_token +
	             target.head * p.out.stride_head;
	if (p.lse && slice == 0)
		target.lse = p.lse + token * p.lse_stride_token + target.head * p.lse_stride_head;
	return target;
}

template <class C>
__device__ __forceinline__ struct fa_paged_target
fa_paged_target_of(const struct fa_cuda_paged_attention &args, const fa_paged_walk_of<C> &walk,
                   uint32_t row)
{
	const uint32_t at = walk.row(args, C::ROWS) + row;

	if (at >= walk.item.n_q * args.attention.group)
		return { NULL, NULL, 0 };
	return fa_paged_target_at(args, walk.item.first_q, at, walk.kv_head(args),
	                          walk.slice(args));
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
		uint32_t both = fa_pack<typename C::T>(x, y);

		if constexpr (C::CODES)
			if (((const struct fa_cuda_paged_attention_codes &)args).codes.dtype ==
			    FA_CODES_BF16)
				both = fa_pack<fa_bf16>(x, y);

		if (args.attention.aligned) {
			*(uint32_t *)to = both;
		} else {
			((uint16_t *)to)[0] = (uint16_t)both;
			((uint16_t *)to)[1] = (uint16_t)(both >> 16);
		}
	}
}

/* Where a segment's share is: its first row, of all places'. */
template <class C>
__device__ __forceinline__ uint32_t fa_paged_share(const struct fa_cuda_paged_attention &args,
                                                   const fa_paged_walk_of<C> &walk)
{
	if constexpr (C::PIECES)
		return walk.place * args.place_rows;
	else
		return (2 * blockIdx.x + !walk.first) * C::ROWS;
}

/*
 * The last block of a part adds up the shares of blocks [first, last]. All threads that
 * finish. A thread has four columns of a row, and asks for many shares before it looks at the
 * first: it is the memory's latency that counts here.
 */
template <class C>
__device__ __forceinline__ void fa_paged_reduce(const struct fa_cuda_paged_attention &args,
                                                const fa_paged_walk_of<C> &walk, uint32_t first,
                                                uint32_t last)
{
	constexpr uint32_t quads = C::DIM_V / 4;
	constexpr int at_once = 16;
	/* Only the first block may have had another part before this one. */
	const uint32_t start = first * args.tiles_each + min(first, args.tiles_extra);
	const uint32_t first_place = 2 * first + (start < walk.tile);
	const uint32_t rows = walk.rows(args, C::ROWS);

	for (uint32_t i = threadIdx.x; i < rows * quads; i += C::JOINED) {
		const uint32_t row = i / quads, quad = i % quads;
		const struct fa_paged_target target = fa_paged_target_of<C>(args, walk, row);
		float max = -FLT_MAX, sum = 0, x = 0, y = 0, z = 0, w = 0;

#pragma unroll 1
		for (uint32_t block = first; block <= last; block += at_once) {
			float2 share[at_once];
			float4 out[at_once];
			float top = max;

#pragma unroll
			for (int j = 0; j < at_once; j++) {
				/* Past the last, the last once more, for nothing. */
				const uint32_t by = min(block + j, last);
				const uint32_t place = by == first ? first_place : 2 * by;
				const uint32_t at = place * C::ROWS + row;

				share[j] = __ldcg((const float2 *)&args.partial_sums[at * 2]);
				out[j] = __ldcg(
					(const float4 *)&args
						.partials[(size_t)at * C::DIM_V + 4 * quad]);
			}
#pragma unroll
			for (int j = 0; j < at_once; j++) {
				top = fmaxf(top, share[j].x);
			}

			const float shrink = fa_ex2(max - top);

			max = top;
			sum *= shrink;
			x *= shrink;
			y *= shrink;
			z *= shrink;
			w *= shrink;
#pragma unroll
			for (int j = 0; j < at_once; j++) {
				const float weight = fa_ex2(share[j].x - max);

				if (block + j > last)
					continue;
				sum += weight * share[j].y;
				x += weight * out[j].x;
				y += weight * out[j].y;
				z += weight * out[j].z;
				w += weight * out[j].w;
			}
		}

		const float factor = fa_paged_factor(args.attention, target.head, max, sum,
		                                     quad == 0 ? target.lse : NULL);
		const uint32_t column = walk.slice(args) * C::DIM_V + 4 * quad;

		fa_paged_store<C>(args, target.out, column, x * factor, y * factor);
		fa_paged_store<C>(args, target.out, column + 2, z * factor, w * factor);
	}
}

/* Counts this block in; whether it is the last of @n. One thread. What an earlier launch may
 * have left is below this one's epoch. */
__device__ __forceinline__ bool fa_paged_arrive(uint64_t *counter, uint64_t epoch, uint32_t n)
{
	fa_atomic_max(counter, epoch << 16);
	return fa_atomic_add_ordered(counter, 1) + 1 == (epoch << 16) + n;
}
