/*
 * FIXED_MAX: keeps rows finite whose later logits far exceed their fixed maximum. Checked per tile,
 * after its exponentials and before P V:
 *  - A sum beyond SUM_HIGH is scaled down with O and P, by a power of two.
 *  - A sum beyond FA_SM90_SUM_LOST may have overflown, and earlier tiles count for nothing beside
 *    this one. The row starts again with this tile: mma.sync recomputes its logits from global
 *    memory, and they give the new maximum.
 * recompute.h handles rows whose sum is NaN.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/logits.h"
#include "kernels/cuda/sm90/masked_sight.h"
#include "kernels/cuda/sm90/softmax.h"

#include <math.h>
#include <stdint.h>

#define FA_SM90_SUM_LOST 0x1p124f

/* acc = Q K^T of the thread's rows and 8 keys; @k: the row of key lane / 4 of these. Thread t of a
 * quad takes dimensions [t * DIM / 4, (t + 1) * DIM / 4), 4 per load: their order does not change a
 * product. */
template <class C>
__device__ __forceinline__ void fa_sm90_few_dots(float (&acc)[4], const char *const (&q)[2],
                                                 const char *k, int32_t width)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		acc[i] = 0;
#pragma unroll(C::GROUPS == 2 ? 8 : 1)
	for (int32_t d = 0; d < C::DIM / 4; d += 4) {
		uint2 b = make_uint2(0, 0), a0 = b, a1 = b;

		if (d < width) {
			b = *(const uint2 *)(k + d * 2);
			a0 = *(const uint2 *)(q[0] + d * 2);
			a1 = *(const uint2 *)(q[1] + d * 2);
		}

		const uint32_t a[4] = { a0.x, a1.x, a0.y, a1.y };

		fa_mma_m16n8k16<typename C::T>(acc, a, b.x, b.y);
	}
}

/* Logits of 8 keys from @first on; -inf where a row does not see one. */
template <class C>
__device__ __forceinline__ void fa_sm90_few_logits(float (&ret)[4], const typename C::ARGS &all,
                                                   const typename C::SOURCE::WORK &work,
                                                   int32_t first)
{
	const struct fa_cuda_attention &args = C::SOURCE::attention(all);
	const uint32_t thread = threadIdx.x + fa_opaque_zero();
	const int32_t row = work.row + thread % 128 / 32 * 16 + thread % 32 / 4;
	const int32_t element = thread % 4 * (C::DIM / 4);
	const int32_t begin = C::SOURCE::first_key(work);
	/* Clamped to the sequence. */
	const int32_t key = min(max(first + (int32_t)(thread % 32 / 4), begin), work.n_k - 1);
	const char *const base = fa_work_base(args.q, work.sequence, work.first_q, work.head) +
	                         element * 2;
	const char *const q[2] = { base + min(row, work.n_q - 1) * args.q.stride_token,
		                   base + min(row + 8, work.n_q - 1) * args.q.stride_token };

	fa_sm90_few_dots<C>(ret, q, C::SOURCE::k_row(all, work, key) + element * 2,
	                    args.head_dim - element);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int32_t at = first + thread % 4 * 2 + i % 2;
		const int32_t position = at - row - i / 2 * 8 - work.diagonal;

		ret[i] = C::SCORE_MOD
		                 ? fa_sm90_logit(ret[i], args, fa_sm90_alibi_slope(args, work.head),
		                                 position)
		                 : ret[i] * args.scale_log2;
		if (((C::BAND || C::PAGED) && at < begin) || at >= work.n_k ||
		    (C::BAND && (position < -args.window_left || position > args.window_right)))
			ret[i] = -INFINITY;
	}
}

/* The same for 8 keys of a tile of halves, from its @at-th row on. */
template <class C>
__device__ __forceinline__ void fa_sm90_few_logits(float (&ret)[4], const typename C::ARGS &all,
                                                   const typename C::SOURCE::WORK &work,
                                                   const struct fa_sm90_sight<C> &tile, int32_t at)
{
	fa_sm90_few_logits<C>(ret, all, work, tile.key_of(at));
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const uint32_t seen = tile.seen(all, r, threadIdx.x / 128 - 1,
		                                work.n_k - work.row - work.diagonal) >>
		                      at / 4;

#pragma unroll
		for (int e = 0; e < 2; e++)
			if (!(seen >> e & 1))
				ret[r * 2 + e] = -INFINITY;
	}
}

/* Restarts rows whose offset is NaN. @work: its row is the group's first. @tile: the tile's first key
 * in the sequence, or its halves. */
template <class C, class TILE>
__device__ __forceinline__ void fa_sm90_start_again(struct fa_sm90_sums &sums, fa_sm90_p<C> &p,
                                                    const typename C::ARGS &all,
                                                    const typename C::SOURCE::WORK &work, TILE tile)
{
	/* The greatest logit; later the offset of a restarted row, or NaN. */
	float x[2] = { -INFINITY, -INFINITY };

#pragma unroll 1
	for (int32_t step = 0; step < 2 * C::KEYS / 8; step++) {
		const int32_t chunk = step % (C::KEYS / 8);
		float logits[4];

		if constexpr (C::LISTED)
			fa_sm90_few_logits<C>(logits, all, work, tile, chunk * 8);
		else
			fa_sm90_few_logits<C>(logits, all, work, tile + chunk * 8);
#pragma unroll
		for (int r = 0; r < 2; r++) {
			if (step < C::KEYS / 8) {
				x[r] = fmaxf(x[r], fmaxf(logits[r * 2], logits[r * 2 + 1]));
				if (step < C::KEYS / 8 - 1)
					continue;
				x[r] = fmaxf(x[r], __shfl_xor_sync(~0u, x[r], 1));
				x[r] = fmaxf(x[r], __shfl_xor_sync(~0u, x[r], 2));
				x[r] = isnan(sums.offset[r]) ? (float)C::MAX_EXPONENT - x[r] : NAN;
				if (!isnan(x[r]))
					sums.offset[r] = x[r];
			} else if (!isnan(x[r])) {
				const float low = fa_ex2(logits[r * 2] + x[r]);
				const float high = fa_ex2(logits[r * 2 + 1] + x[r]);
				const uint32_t pair = fa_pack<typename C::T>(low, high);

				sums.sum[r] += low + high;
				/* Registers cannot be indexed. */
#pragma unroll
				for (int j = 0; j < C::KEYS / 8; j++)
					if (j == chunk)
						p[j / 2][j % 2 * 2 + r] = pair;
			}
		}
	}
}

/* Keeps the warp's rows finite. @out: their O without this tile, @p: this tile's P. @key: the
 * tile's first key, relative to the group's first row if BAND, or its halves. */
template <class C, class KEY>
__device__ __forceinline__ void
fa_sm90_prevent_overflow(struct fa_sm90_sums &sums, fa_sm90_out_rows<C> &out, fa_sm90_p<C> &p,
                         const typename C::ARGS &all, const typename C::SOURCE::BLOCK &block,
                         uint32_t group, KEY key)
{
	if (!__any_sync(~0u, sums.sum[0] > C::SUM_HIGH || sums.sum[1] > C::SUM_HIGH))
		return;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float sum = sums.sum[r], shrink = 1;

		/* A maximum would hide a NaN. */
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		if (sum > FA_SM90_SUM_LOST) {
			shrink = 0;
			sums.sum[r] = 0;
			sums.offset[r] = NAN; /* restart */
		} else if (sum > C::SUM_HIGH) {
			const int32_t exponent = min(
				(__float_as_int(sum) >> 23) - 127 - C::MAX_EXPONENT, 126);

			shrink = __int_as_float((127 - exponent) << 23);
			sums.sum[r] *= shrink;
			sums.offset[r] -= (float)exponent;
		}
#pragma unroll
		for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				out[j * 4 + r * 2 + e] *= shrink;
#pragma unroll
		for (int k = 0; k < C::KEYS / 16; k++)
#pragma unroll
			for (int half = 0; half < 2; half++)
				p[k][half * 2 + r] = fa_fma_packed<typename C::T>(
					p[k][half * 2 + r], fa_pack<typename C::T>(shrink, shrink),
					0x80008000);
	}
	if (__any_sync(~0u, isnan(sums.offset[0]) || isnan(sums.offset[1]))) {
		const auto work = C::SOURCE::template find<C>(all, block, group);

		if constexpr (C::LISTED)
			fa_sm90_start_again<C>(sums, p, all, work, key);
		else
			fa_sm90_start_again<C>(sums, p, all, work,
			                       C::BAND ? key + C::SOURCE::origin(work) : key);
	}
}
