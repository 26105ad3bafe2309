/*
 * The two products of a warp: Q K^T, and O += P V.
 *
 * A hidden key has p = 0, but 0 times an infinity or NaN in V is NaN. ISOLATE splits V: finite
 * elements are multiplied as usual; for the others, rows that see the key get +inf, -inf or, for
 * NaN, both, as products of the largest bf16 with itself; other rows get 0.
 */
#pragma once

#include "kernels/cuda/common/swizzle.h"
#include "kernels/cuda/common/warp_pair.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/ptx/ldmatrix.h"
#include "kernels/cuda/ptx/mma.h"

#include <stdint.h>

/* dots = Q K^T for a warp's rows and one tile. @q, @k: this lane's ldmatrix addresses of the first
 * fragments. UNROLL: steps of 16 columns. */
template <class C, int UNROLL, int TILES>
__device__ __forceinline__ void fa_warp_dots(float (&dots)[C::ATOMS][TILES][4], uint32_t q,
                                             uint32_t k)
{
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int j = 0; j < TILES; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				dots[a][j][e] = 0;

#pragma unroll UNROLL
	for (int d = 0; d < C::DIM / 16; d++) {
		uint32_t fragment[C::ATOMS][4];

#pragma unroll
		for (int a = 0; a < C::ATOMS; a++)
			fa_ldmatrix_x4(fragment[a],
			               fa_swizzle<C::DIM>::advance(q, 2 * d) + a * 16 * C::DIM * 2);
#pragma unroll
		for (int j = 0; j < TILES / 2; j++) {
			uint32_t b[4];

			fa_ldmatrix_x4(b,
			               fa_swizzle<C::DIM>::advance(k, 2 * d) + j * 16 * C::DIM * 2);
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				fa_mma_m16n8k16<typename C::T>(dots[a][2 * j], fragment[a], b[0],
				                               b[1]);
				fa_mma_m16n8k16<typename C::T>(dots[a][2 * j + 1], fragment[a],
				                               b[2], b[3]);
			}
		}
	}
}

/* Two packed elements of V: finite ones, and +- the largest bf16 for the rest. */
template <class T> struct fa_warp_v_split {
	uint32_t finite, plus, minus;

	__device__ __forceinline__ fa_warp_v_split(uint32_t word)
	{
		constexpr uint32_t infinity = fa_infinity<T>(), carry = 0x8000 - infinity;
		const uint32_t magnitude = word & 0x7fff7fff;
		const uint32_t not_finite = (magnitude + carry * 0x10001) & 0x80008000;
		const uint32_t nan = (magnitude + (carry - 1) * 0x10001) & 0x80008000;

		finite = word & ~((not_finite >> 15) * 0xffff);
		plus = ((not_finite & (nan | ~word)) >> 15) * 0x7f7f;
		minus = ((not_finite & (nan | word)) >> 15) * 0xff7f;
	}
};

/* For 16 keys from @offset on, as P's fragment: the largest bf16 where the row sees the key, else
 * 0. */
template <class C, class SIGHT>
__device__ __forceinline__ void fa_warp_visible(uint32_t (&ret_seen)[C::ATOMS][4],
                                                const SIGHT &sight, int offset)
{
#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			ret_seen[a][i] =
				(sight.sees(2 * a + i % 2, offset + i / 2 * 8) ? 0x7f7f : 0) |
				(sight.sees(2 * a + i % 2, offset + i / 2 * 8 + 1) ? 0x7f7f0000
			                                                           : 0);
}

/* O += P V for 16 keys from @offset of @sight on. @v: this lane's ldmatrix address. SIGHT: like
 * fa_warp_visibility. */
template <class C, bool ISOLATE, class SIGHT>
__device__ __forceinline__ void fa_warp_product(struct fa_warp_rows<C> &rows,
                                                const uint32_t (&p)[C::ATOMS][4], uint32_t v,
                                                const SIGHT &sight, int offset)
{
	using T = typename C::T;
	uint32_t seen[C::ATOMS][4];

	if (ISOLATE)
		fa_warp_visible<C>(seen, sight, offset);
#pragma unroll
	for (int j = 0; j < C::WARP_DIM_V / 16; j++) {
		uint32_t b[4];

		fa_ldmatrix_x4_trans(
			b, fa_swizzle<C::DIM_V>::advance(v, fa_warp_pair<C>::chunk(2 * j)));
		if constexpr (!ISOLATE) {
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				fa_mma_m16n8k16<T>(rows.out[a][2 * j], p[a], b[0], b[1]);
				fa_mma_m16n8k16<T>(rows.out[a][2 * j + 1], p[a], b[2], b[3]);
			}
		} else {
#pragma unroll
			for (int n = 0; n < 2; n++) {
				const fa_warp_v_split<T> lo(b[2 * n]), hi(b[2 * n + 1]);

#pragma unroll
				for (int a = 0; a < C::ATOMS; a++)
					fa_mma_m16n8k16<T>(rows.out[a][2 * j + n], p[a], lo.finite,
					                   hi.finite);
				if (!__any_sync(~0u, lo.plus | lo.minus | hi.plus | hi.minus))
					continue;
#pragma unroll
				for (int a = 0; a < C::ATOMS; a++) {
					fa_mma_m16n8k16<fa_bf16>(rows.out[a][2 * j + n], seen[a],
					                         lo.plus, hi.plus);
					fa_mma_m16n8k16<fa_bf16>(rows.out[a][2 * j + n], seen[a],
					                         lo.minus, hi.minus);
				}
			}
		}
	}
}

/* O += exp(dots + offset) V for a tile, and the sums. Exponentials of 16 keys overlap products of
 * the 16 before. @v: this lane's ldmatrix address. */
template <class C, bool ISOLATE, int TILES, class SIGHT>
__device__ __forceinline__ void
fa_warp_accumulate(struct fa_warp_rows<C> &rows, const float (&dots)[C::ATOMS][TILES][4],
                   float factor, uint32_t v, const struct fa_warp_pair<C> &pair, const SIGHT &sight)
{
	constexpr int steps = TILES / 2;
	constexpr uint32_t step_bytes = 16 * C::DIM_V * 2;

	if constexpr (C::SPLIT == 1) {
#pragma unroll
		for (int k = 0; k < steps; k++) {
			uint32_t p[C::ATOMS][4];

			fa_warp_probabilities<C>(rows, p, dots, factor, k);
			fa_warp_product<C, ISOLATE>(rows, p, v + k * step_bytes, sight, k * 16);
		}
		return;
	}

	/* Each fragment goes to the same lane of the other warp. */
	const uint32_t lane_bytes = threadIdx.x % 32 * 16;
	const uint32_t half_bytes = C::WARP_KEYS * C::DIM_V * 2;
	const uint32_t v_mine = v + pair.half * half_bytes;
	const uint32_t v_others = v + (1 - pair.half) * half_bytes;
	const int others = pair.half ? -C::WARP_KEYS : C::WARP_KEYS;
	uint32_t p[steps][C::ATOMS][4];

#pragma unroll
	for (int k = 0; k < steps; k++) {
		fa_warp_probabilities<C>(rows, p[k], dots, factor, k);
#pragma unroll
		for (int a = 0; a < C::ATOMS; a++)
			fa_st_shared_v4(pair.mine + (k * C::ATOMS + a) * 512 + lane_bytes,
			                make_uint4(p[k][a][0], p[k][a][1], p[k][a][2], p[k][a][3]));
		fa_warp_product<C, ISOLATE>(rows, p[k], v_mine + k * step_bytes, sight, k * 16);
	}
	fa_barrier_sync(pair.barrier, 64);
#pragma unroll
	for (int k = 0; k < steps; k++) {
#pragma unroll
		for (int a = 0; a < C::ATOMS; a++) {
			const uint4 value = fa_ld_shared_v4(pair.others + (k * C::ATOMS + a) * 512 +
			                                    lane_bytes);

			p[k][a][0] = value.x;
			p[k][a][1] = value.y;
			p[k][a][2] = value.z;
			p[k][a][3] = value.w;
		}
		fa_warp_product<C, ISOLATE>(rows, p[k], v_others + k * step_bytes, sight,
		                            others + k * 16);
	}
}
