/*
 * A group's rows between the two products: masks, maxima, exponentials.
 *
 * The maximum m that rows subtract in the exponent is allowed to lag: it is raised, and O
 * and the sum rescaled, only when a new logit exceeds it by more than 8 (in units of
 * ln 2). p is then at most 256, harmless in fp16, bf16 and the fp32 sums, and after the
 * first tiles a warp hardly ever touches O between products. With bf16 it is that of the
 * first tile in which the row sees a key (LAZY), so that later tiles need no maximum. ALiBi can
 * raise a row's logits beyond all bounds from there to the last, but no logit is more than its
 * dot product says: of those the maximum is taken, and of the nearest key's distance.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/softcap.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/config.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* Each thread has two of its warp's 16 rows, g and g + 8. */
struct fa_sm90_sums {
	/* What is added in the exponent: less a recent maximum of the logits. FLT_MAX at
	 * first: masked logits (-inf) give 0 even then, so no row needs care. */
	float offset[2];
	float sum[2]; /* of this thread's keys */

	__device__ __forceinline__ void reset(void)
	{
		offset[0] = offset[1] = FLT_MAX;
		sum[0] = sum[1] = 0;
	}

	/* Has row @r seen no key yet? */
	__device__ __forceinline__ bool unset(int r) const
	{
		return offset[r] == FLT_MAX;
	}
};

/* Their part of O, as wgmma has it. */
template <class C> using fa_sm90_out_rows = float[C::DIM_V / 2];

/* Dot products of a tile, then their exponentials, as wgmma has them. */
template <class C> using fa_sm90_dots = float[C::KEYS / 2];

/* P as wgmma takes it, 16 keys at a time. */
template <class C> using fa_sm90_p = uint32_t[C::KEYS / 16][4];

/* How many of a thread's elements of a row of a tile have keys before @end, which counts from the
 * first: those are 8 keys on, by twos. */
__device__ __forceinline__ int32_t fa_sm90_elements_before(int32_t end, int32_t count)
{
	return end <= 0 ? 0 : min((end >> 3) * 2 + min(end & 7, 2), count);
}

/* As many bits, from the lowest. */
__device__ __forceinline__ uint32_t fa_sm90_bits(int32_t count)
{
	return count < 32 ? (1u << count) - 1 : ~0u;
}

/* The same as fa_sm90_mask() for a row: @first, @last: what it sees, from the key of its first
 * element. A word says so, several bits of which become predicates at once: a third of the
 * instructions. Where it is used loops come out better with it, or as well (C::MASK_WORDS). */
template <class C>
__device__ __forceinline__ void fa_sm90_mask_row(fa_sm90_dots<C> &dots, int r, int32_t first,
                                                 int32_t last)
{
	constexpr int32_t count = C::KEYS / 4;
	const uint32_t seen = fa_sm90_bits(fa_sm90_elements_before(last + 1, count)) &
	                      ~fa_sm90_bits(fa_sm90_elements_before(first, count));

	static_assert(count <= 32, "bits of a word");
#pragma unroll
	for (int i = 0; i < count; i++)
		if (!(seen >> i & 1))
			dots[i / 2 * 4 + r * 2 + i % 2] = -INFINITY;
}

/*
 * Sets what a row does not see to -inf. @key: that of dots[0], from the position of the
 * row of dots[0] or, without BAND, from 0; @begin, @end: from there to the first key that is
 * not hidden, if PAGED, and to the sequence's end.
 */
template <class C>
__device__ __forceinline__ void fa_sm90_mask(fa_sm90_dots<C> &dots,
                                             const struct fa_cuda_attention &args, int32_t key,
                                             int32_t begin, int32_t end)
{
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int32_t first = max(r * 8 - args.window_left, C::PAGED ? begin : INT32_MIN) -
		                      key;
		const int32_t last = C::BAND ? min(end - 1, r * 8 + args.window_right) - key
		                             : end - 1 - key;

		if constexpr (C::MASK_WORDS) {
			fa_sm90_mask_row<C>(dots, r, first, last);
		} else {
#pragma unroll
			for (int j = 0; j < C::KEYS / 8; j++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					if (j * 8 + e > last || (C::BAND && j * 8 + e < first))
						dots[j * 4 + r * 2 + e] = -INFINITY;
		}
	}
}

/*
 * Raises the rows' maxima to this tile's where they have fallen too far behind or, if
 * LAZY, where there is none yet; the sums with them. Returns whether any of the warp's
 * were; O is to be multiplied by @scale then, which gets the factors. Each row for
 * itself, so that its bits depend on no other row. @shift: what is added to a thread's logits
 * of a row, if RICH. @along: what its elements have too much, by each key on, if SLOPES and LAZY.
 */
template <class C>
__device__ __forceinline__ bool
fa_sm90_raise(struct fa_sm90_sums &sums, const fa_sm90_dots<C> &dots, float factor,
              const float (&shift)[2], float along, float (&scale)[2])
{
	float max[2];
	bool raise = false;

	const auto element = [&](int i) {
		return C::SLOPES && C::LAZY ? fmaf(-along, (float)(i / 4 * 8 + i % 2), dots[i])
		                            : dots[i];
	};

	const auto behind = [&](int r, float logit) {
		return fmaf(logit, C::RICH ? 1 : factor, sums.offset[r]) > 8 &&
		       (!C::LAZY || sums.unset(r));
	};

#pragma unroll
	for (int r = 0; r < 2; r++) {
		max[r] = fmaxf(element(r * 2), element(r * 2 + 1));
#pragma unroll
		for (int j = 1; j < C::KEYS / 8; j++)
			max[r] = fmaxf(max[r],
			               fmaxf(element(j * 4 + r * 2), element(j * 4 + r * 2 + 1)));
		/* Each thread's elements have a shift of their own. */
		if (C::RICH)
			max[r] = fmaf(max[r], factor, shift[r]);
		raise |= behind(r, max[r]);
	}
	if (!__any_sync(~0u, raise))
		return false;

#pragma unroll
	for (int r = 0; r < 2; r++) {
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 1));
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 2));

		const float least = C::RICH ? -max[r] : -max[r] * factor;
		const float offset = behind(r, max[r]) ? least : sums.offset[r];
		const float shrink = fa_ex2(offset - sums.offset[r]);

		sums.offset[r] = offset;
		sums.sum[r] *= shrink;
		scale[r] *= shrink;
	}
	return true;
}

/*
 * If LAZY, the rest of it: p is as large as it may be (bf16 has the exponents of fp32), and
 * only if the sums grow out of all proportion are they scaled down, by a power of two.
 * Needs no logit. What overflows nevertheless is seen at the end.
 */
__device__ __forceinline__ bool fa_sm90_lower(struct fa_sm90_sums &sums, float (&scale)[2])
{
	constexpr float high = 0x1p40f;

	if (!__any_sync(~0u, sums.sum[0] > high || sums.sum[1] > high))
		return false;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		float sum = sums.sum[r], shrink;
		int32_t exponent;

		sum = fmaxf(sum, __shfl_xor_sync(~0u, sum, 1));
		sum = fmaxf(sum, __shfl_xor_sync(~0u, sum, 2));
		exponent = sum > high ? min((__float_as_int(sum) >> 23) - 127, 100) : 0;
		shrink = __int_as_float((127 - exponent) << 23);
		sums.offset[r] -= (float)exponent;
		sums.sum[r] *= shrink;
		scale[r] *= shrink;
	}
	return true;
}

template <class C>
__device__ __forceinline__ void fa_sm90_rescale(fa_sm90_out_rows<C> &out, const float (&scale)[2])
{
#pragma unroll
	for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			out[j * 4 + e] *= scale[e / 2];
}

/* Adds @add of their rows to dots. */
template <class C>
__device__ __forceinline__ void fa_sm90_add(fa_sm90_dots<C> &dots, const float (&add)[2])
{
#pragma unroll
	for (int i = 0; i < C::KEYS / 2; i++)
		dots[i] += add[i / 2 % 2];
}

/* dots = exp(dots + offset), or of dots alone if LOWERS, for steps @FIRST to @END of 16 keys, and
 * the sums with it. @shift: as above. */
template <class C, int FIRST, int END>
__device__ __forceinline__ void fa_sm90_exponentials(struct fa_sm90_sums &sums,
                                                     fa_sm90_dots<C> &dots, float factor,
                                                     const float (&shift)[2])
{
#pragma unroll
	for (int i = FIRST * 8; i < END * 8; i++) {
		const int r = i / 2 % 2;

		dots[i] = fa_ex2(
			C::LOWERS ? dots[i]
				  : fmaf(dots[i], factor,
		                         C::RICH ? sums.offset[r] + shift[r] : sums.offset[r]));
		sums.sum[r] += dots[i];
	}
	/* Here, not where the compiler finds their first use, behind waits. */
	fa_wgmma_hold(dots);
	fa_wgmma_hold(sums.sum);
}

/* If LOWERS, of a tile that all rows see all of, and have a maximum: the soft cap and, beside it,
 * the exponentials of the first half. As fa_sm90_logits() and fa_sm90_exponentials(), to the
 * bit. */
template <class C>
__device__ __forceinline__ void fa_sm90_capped(struct fa_sm90_sums &sums, fa_sm90_dots<C> &dots,
                                               const struct fa_cuda_attention &args)
{
	static_assert(!C::LOWERS || C::KEYS / 4 % C::CAP_PART == 0, "halves are whole parts");
	fa_softcap_warp<C::CAP_PART, C::CAP_CHAINS>(
		dots, sums.offset, fa_softcap(args), [&](int first, int end) {
			if (end <= C::KEYS / 4)
#pragma unroll
				for (int i = first; i < end; i++) {
					dots[i] = fa_ex2(dots[i]);
					sums.sum[i / 2 % 2] += dots[i];
				}
		});
	fa_wgmma_hold(dots);
	fa_wgmma_hold(sums.sum);
}

template <class C>
__device__ __forceinline__ void fa_sm90_round(fa_sm90_p<C> &ret_p, const fa_sm90_dots<C> &dots)
{
#pragma unroll
	for (int k = 0; k < C::KEYS / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			ret_p[k][i] = fa_pack<typename C::T>(dots[k * 8 + i * 2],
			                                     dots[k * 8 + i * 2 + 1]);
			fa_wgmma_hold(ret_p[k][i]);
		}
}
