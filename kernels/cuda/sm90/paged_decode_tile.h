/*
 * What one warp does with its 16 tokens of a tile: S = Q K^T, softmax, O += P V with mma.m16n8k16.
 *
 * Bulk copies leave rows without padding or swizzle, so eight rows of one column of 16-byte chunks
 * share banks. Lanes read chunks in an order that uses all banks, and sort them in registers; with
 * the lane as (g, t) of the fragment:
 *   K  a lane loads 16 bytes, its fragments of two steps along k; Q is loaded alike. Odd rows
 *      load the second four of eight chunks while even rows load the first, then swap.
 *   V  ldmatrix.trans reads chunk c ^ i of row i. Lane (g, t) gets column g of chunk c ^ 2t for
 *      key 2t, of chunk c ^ 2t ^ 1 for key 2t + 1: halves of two registers are combined, then
 *      registers are swapped by the bits of t.
 */
#pragma once

#include "kernels/cuda/common/logits.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/common/warp_pair.h"
#include "kernels/cuda/common/warp_product.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/ldmatrix.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/sm90/paged_config.h"
#include "kernels/cuda/sm90/paged_epilogue.h"

#include <stdint.h>

template <class C, bool IN_REGISTERS = C::Q_IN_REGISTERS> struct fa_sm90_paged_q {
	uint4 chunks[C::ATOMS][C::DIM / 32][2]; /* of rows g and g + 8 */

	/* Called while no warp reads MERGE. */
	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args,
	                                     const fa_paged_segment_of<C> &segment, uint32_t shared)
	{
		const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

		if (__builtin_expect(!args.attention.aligned, 0)) {
			const uint32_t at = gather(args, segment, shared);

#pragma unroll
			for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
				for (int c = 0; c < C::DIM / 32; c++)
					chunks[r / 2][c][r % 2] = fa_ld_shared_v4(
						at + (g + 8 * r) * C::DIM * 2 + (4 * c + t) * 16);
			return;
		}
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++) {
			const char *const row = fa_paged_q_row<C>(args, segment, g + 8 * r);

#pragma unroll
			for (int c = 0; c < C::DIM / 32; c++)
				chunks[r / 2][c][r % 2] = fa_paged_q_chunk<C, true>(args.attention,
				                                                    row, 4 * c + t);
		}
	}

	/* Copies unaligned rows to this warp's MERGE area. */
	__device__ __forceinline__ uint32_t gather(const struct fa_cuda_paged_attention &args,
	                                           const fa_paged_segment_of<C> &segment,
	                                           uint32_t shared)
	{
		const uint32_t warp = threadIdx.x / 32;
		const uint32_t to = shared + C::MERGE + warp * C::ROWS * C::MERGE_PITCH * 4;

		static_assert(C::MERGE_PITCH * 4 >= C::DIM * 2, "a row of Q fits a row of MERGE");
#pragma unroll 1
		for (uint32_t i = threadIdx.x % 32; i < C::ROWS * C::DIM / 2; i += 32) {
			const char *const row = fa_paged_q_row<C>(args, segment, i / (C::DIM / 2));
			const uint16_t *const halves = (const uint16_t *)row + i % (C::DIM / 2) * 2;

			fa_st_shared(to + i * 4, row ? halves[0] | (uint32_t)halves[1] << 16 : 0);
		}
		__syncwarp();
		return to;
	}

	__device__ __forceinline__ uint4 get(int atom, int c, int half) const
	{
		return chunks[atom][c][half];
	}
};

template <class C> struct fa_sm90_paged_q<C, false> {
	uint32_t at;

	/* Ends with a barrier of all consumers. No warp may still read the previous Q. */
	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args,
	                                     const fa_paged_segment_of<C> &segment, uint32_t shared)
	{
		constexpr uint32_t chunks = C::DIM / 8, all = C::ROWS * chunks;
		constexpr int each = (all + C::JOINED - 1) / C::JOINED;
		uint4 values[each];

		/* All loads are in flight before the first is used. */
#pragma unroll
		for (int j = 0; j < each; j++) {
			const uint32_t i = min(threadIdx.x + j * C::JOINED, all - 1);

			values[j] = fa_paged_q_chunk<C>(
				args.attention, fa_paged_q_row<C>(args, segment, i / chunks),
				i % chunks);
		}
#pragma unroll
		for (int j = 0; j < each; j++) {
			const uint32_t i = threadIdx.x + j * C::JOINED;

			if (i < all)
				fa_st_shared_v4(shared + C::Q + i / chunks * C::Q_PITCH +
				                        i % chunks * 16,
				                values[j]);
		}
		at = shared + C::Q + threadIdx.x % 32 / 4 * C::Q_PITCH + threadIdx.x % 4 * 16;
		fa_barrier_sync(C::COMPUTE, C::JOINED);
	}

	__device__ __forceinline__ uint4 get(int atom, int c, int half) const
	{
		return fa_ld_shared_v4(at + (16 * atom + 8 * half) * C::Q_PITCH + c * 64);
	}
};

/* @k: the first of the warp's 16 tokens. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_dots(float (&dots)[C::ATOMS][2][4],
                                                   const fa_sm90_paged_q<C> &q, uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const bool odd = g % 2;
	const uint32_t at = k + g * C::PITCH + t * 16;
	const uint32_t places[2] = { at + odd * 64, at + !odd * 64 };

#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				dots[a][j][e] = 0;

#pragma unroll
	for (int pair = 0; pair < C::DIM / 64; pair++) {
		uint4 keys[2][2]; /* [j][of the pair] */

#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int i = 0; i < 2; i++)
				keys[j][i] = fa_ld_shared_v4(places[i] + 8 * j * C::PITCH +
				                             pair * 128);
#pragma unroll
		for (int j = 0; j < 2; j++) {
			fa_sm90_paged_swap_if(keys[j][0].x, keys[j][1].x, odd);
			fa_sm90_paged_swap_if(keys[j][0].y, keys[j][1].y, odd);
			fa_sm90_paged_swap_if(keys[j][0].z, keys[j][1].z, odd);
			fa_sm90_paged_swap_if(keys[j][0].w, keys[j][1].w, odd);
		}
#pragma unroll
		for (int i = 0; i < 2; i++)
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				const uint4 low = q.get(a, 2 * pair + i, 0);
				const uint4 high = q.get(a, 2 * pair + i, 1);
				const uint32_t first[4] = { low.x, high.x, low.y, high.y };
				const uint32_t second[4] = { low.z, high.z, low.w, high.w };

#pragma unroll
				for (int j = 0; j < 2; j++)
					fa_mma_m16n8k16<typename C::T>(dots[a][j], first,
					                               keys[j][i].x, keys[j][i].y);
#pragma unroll
				for (int j = 0; j < 2; j++)
					fa_mma_m16n8k16<typename C::T>(dots[a][j], second,
					                               keys[j][i].z, keys[j][i].w);
			}
	}
}

/* Loads V's fragments of 16 tokens and 64 columns: ret[n][j] holds tokens 8 n + 2t and the next,
 * column 8 j + g. @v: the lane's ldmatrix address. */
__device__ __forceinline__ void fa_sm90_paged_values(uint32_t (&ret)[2][8], uint32_t v)
{
	const uint32_t t = threadIdx.x % 4;

#pragma unroll
	for (int j = 0; j < 8; j += 2) {
		uint32_t part[4]; /* chunk j of both halves of the tokens, then chunk j + 1 */

		fa_ldmatrix_x4_trans(part, v ^ j * 16);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			ret[n][j] = __byte_perm(part[n], part[2 + n], 0x7610);
			ret[n][j + 1] = __byte_perm(part[2 + n], part[n], 0x7610);
		}
	}
#pragma unroll
	for (int n = 0; n < 2; n++) {
#pragma unroll
		for (int j = 0; j < 8; j++)
			if (!(j & 2))
				fa_sm90_paged_swap_if(ret[n][j], ret[n][j + 2], t & 1);
#pragma unroll
		for (int j = 0; j < 4; j++)
			fa_sm90_paged_swap_if(ret[n][j], ret[n][j + 4], t & 2);
	}
}

/* O += P V of 16 tokens. @v: the lane's ldmatrix address. ISOLATE: as in common/warp_product.h. */
template <class C, bool ISOLATE>
__device__ __forceinline__ void fa_sm90_paged_product(struct fa_warp_rows<C> &rows,
                                                      const uint32_t (&p)[C::ATOMS][4], uint32_t v,
                                                      const struct fa_paged_visibility &visible)
{
	using T = typename C::T;
	uint32_t seen[C::ATOMS][4];

	if (ISOLATE)
		fa_warp_visible<C>(seen, visible, 0);
#pragma unroll
	for (int i = 0; i < C::DIM_V / 64; i++) {
		uint32_t b[2][8];

		fa_sm90_paged_values(b, v + i * 128);
#pragma unroll
		for (int j = 0; j < 8; j++) {
			if constexpr (!ISOLATE) {
#pragma unroll
				for (int a = 0; a < C::ATOMS; a++)
					fa_mma_m16n8k16<T>(rows.out[a][8 * i + j], p[a], b[0][j],
					                   b[1][j]);
			} else {
				const fa_warp_v_split<T> lo(b[0][j]), hi(b[1][j]);

#pragma unroll
				for (int a = 0; a < C::ATOMS; a++)
					fa_mma_m16n8k16<T>(rows.out[a][8 * i + j], p[a], lo.finite,
					                   hi.finite);
				if (!__any_sync(~0u, lo.plus | lo.minus | hi.plus | hi.minus))
					continue;
#pragma unroll
				for (int a = 0; a < C::ATOMS; a++) {
					fa_mma_m16n8k16<fa_bf16>(rows.out[a][8 * i + j], seen[a],
					                         lo.plus, hi.plus);
					fa_mma_m16n8k16<fa_bf16>(rows.out[a][8 * i + j], seen[a],
					                         lo.minus, hi.minus);
				}
			}
		}
	}
}

struct fa_sm90_paged_cursor {
	int32_t token;
	uint32_t stage, parity;
};

/* Computes tiles up to token @end. @rows_info: the warp's rows. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_tiles(struct fa_warp_rows<C> &rows, const struct fa_cuda_paged_attention &args,
                    const struct fa_cuda_paged_item &item, const fa_sm90_paged_q<C> &q,
                    const struct fa_paged_unmasked &clear, uint32_t shared, uint32_t rows_info,
                    int32_t end, struct fa_sm90_paged_cursor &at)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const uint32_t group = C::GROUPS == 1 ? 0 : warp / C::TILE_WARPS;
	const uint32_t quarter = C::GROUPS == 1 ? warp : warp % C::TILE_WARPS;
	/* The warp's quarter of stage 0, and the lane's ldmatrix offset in it. */
	const uint32_t mine = shared + C::RING + quarter * C::QUARTER;
	const uint32_t row = (lane % 16) * C::PITCH + (lane / 16 ^ lane % 8) * 16;
	const struct fa_warp_pair<C> alone(0, 0);
	struct fa_logits_rich logits(args.attention, 0);

	logits.slope = 0;
#pragma unroll 1
	for (; at.token < end; at.token += C::GROUPS * FA_CUDA_PAGED_TILE) {
		const uint32_t k = mine + at.stage * C::STAGE_BYTES, v = k + C::K_BYTES;
		const int32_t own = at.token + (int32_t)quarter * FA_CUDA_PAGED_STRIP;

		fa_mbarrier_wait(shared + C::FULL + 8 * at.stage, at.parity);
		if (own < end) {
			const bool hides = clear.hides(own);
			struct fa_paged_visibility visible = { ~0u };
			uint32_t weights[C::ATOMS][4];
			float dots[C::ATOMS][2][4];
			bool finite = true;

			fa_sm90_paged_dots<C>(dots, q, k);
			logits.apply(dots, 0);
			if (hides)
				finite = fa_sm90_paged_zero_invalid_v<C>(item, v, own);
			if (hides || args.attention.alibi_slopes)
				visible = fa_paged_mask_scores<C>(dots, args, item, rows_info, own);
			fa_warp_raise_max<C>(rows, dots, 1, alone);
			fa_warp_probabilities<C>(rows, weights, dots, 1, 0);
			if (!finite)
				fa_sm90_paged_product<C, true>(rows, weights, v + row, visible);
			else
				fa_sm90_paged_product<C, false>(rows, weights, v + row, visible);
		}
		__syncwarp(); /* the warp is done with the tile */
		if (lane == 0)
			fa_mbarrier_arrive(shared + C::EMPTY + 8 * at.stage);
		at.stage += C::GROUPS;
		if (C::SETMAXNREG ? at.stage >= C::STAGES : at.stage == C::STAGES + group) {
			at.stage = C::SETMAXNREG ? at.stage - C::STAGES : group;
			at.parity ^= 1;
		}
	}
}
