/*
 * What one warp does with its 16 tokens of a tile of codes: S = Q K^T, softmax, O += P V. Codes
 * become fp16 fragments in registers (common/quantised.h). Loads are free of bank conflicts as in
 * paged_decode_tile.h, with 8-bit elements:
 *   K  a lane loads 16 bytes, four steps along k. Rows of 64 bytes need no swap.
 *   V  ldmatrix.trans takes two 8-bit columns as one of 16 bits. Row i of eight gives chunk
 *      c ^ i (rows of 64 bytes: c ^ i / 2), so lane (g, t) has columns 2g and 2g + 1 of chunk
 *      c ^ 2t for key 2t and of chunk c ^ 2t ^ 1 for key 2t + 1 (c ^ t for both). A byte
 *      permutation pairs the keys, then registers are swapped by the bits of t.
 */
#pragma once

#include "kernels/cuda/common/logits.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/common/quantised.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/ptx/ldmatrix.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/mma.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/sm90/paged_codes_config.h"
#include "kernels/cuda/sm90/paged_codes_q.h"
#include "kernels/cuda/sm90/paged_epilogue.h"

#include <stdint.h>

/* dots += Q K^T over 16 of each 64 columns; @keys: of tokens g and g + 8. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_steps(float (&dots)[C::ATOMS][2][4],
                                                    const fa_sm90_codes_q<C> &q, int first,
                                                    const uint4 (&keys)[2])
{
	const uint32_t words[2][4] = { { keys[0].x, keys[0].y, keys[0].z, keys[0].w },
		                       { keys[1].x, keys[1].y, keys[1].z, keys[1].w } };

#pragma unroll
	for (int s = 0; s < 4; s++) {
		uint32_t b[2][2];

#pragma unroll
		for (int j = 0; j < 2; j++)
			fa_quantised_unpack<C::STORE>(words[j][s], b[j][0], b[j][1]);
#pragma unroll
		for (int a = 0; a < C::ATOMS; a++) {
			const uint4 step = q.get(a, first + s);
			const uint32_t fragment[4] = { step.x, step.y, step.z, step.w };

#pragma unroll
			for (int j = 0; j < 2; j++)
				fa_mma_m16n8k16<fa_f16>(dots[a][j], fragment, b[j][0], b[j][1]);
		}
	}
}

/* Dots are in units of K's codes. @k: the warp's first row. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_dots(float (&dots)[C::ATOMS][2][4],
                                                   const fa_sm90_codes_q<C> &q, uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const uint32_t at = k + g * C::PITCH + t * 16;
	const bool odd = g % 2;

#pragma unroll
	for (int a = 0; a < C::ATOMS; a++)
#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				dots[a][j][e] = 0;

	if constexpr (C::DIM == 64) {
		const uint4 keys[2] = { fa_ld_shared_v4(at), fa_ld_shared_v4(at + 8 * C::PITCH) };

		fa_sm90_codes_steps<C>(dots, q, 0, keys);
	}
#pragma unroll
	for (int pair = 0; pair < C::DIM / 128; pair++) {
		uint4 keys[2][2]; /* [of the pair][j] */

#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int i = 0; i < 2; i++)
				keys[i][j] = fa_ld_shared_v4(at + (i ? !odd : odd) * 64 +
				                             8 * j * C::PITCH + pair * 128);
#pragma unroll
		for (int j = 0; j < 2; j++) {
			fa_sm90_paged_swap_if(keys[0][j].x, keys[1][j].x, odd);
			fa_sm90_paged_swap_if(keys[0][j].y, keys[1][j].y, odd);
			fa_sm90_paged_swap_if(keys[0][j].z, keys[1][j].z, odd);
			fa_sm90_paged_swap_if(keys[0][j].w, keys[1][j].w, odd);
		}
#pragma unroll
		for (int i = 0; i < 2; i++)
			fa_sm90_codes_steps<C>(dots, q, 8 * pair + 4 * i, keys[i]);
	}
}

/* The lane's ldmatrix address, relative to the warp's first row of V. */
template <class C> __device__ __forceinline__ uint32_t fa_sm90_codes_v(void)
{
	const uint32_t lane = threadIdx.x % 32, row = lane % 16;
	const uint32_t turn = C::DIM == 64 ? row / 2 % 4 : row % 8;

	return row * C::PITCH_V + (lane / 16 ^ turn) * 16;
}

/* Loads codes of 16 tokens and CHUNKS chunks of 16 columns: ret[n][j] holds tokens 8 n + 2t and the
 * next, column 16 j + 2g in the low half and 16 j + 2g + 1 in the high half. */
template <class C, int CHUNKS>
__device__ __forceinline__ void fa_sm90_codes_values(uint32_t (&ret)[2][CHUNKS], uint32_t v)
{
	constexpr int near = CHUNKS / 4, far = CHUNKS / 2;
	const uint32_t t = threadIdx.x % 4;

#pragma unroll
	for (int j = 0; j < CHUNKS; j += 2) {
		uint32_t part[4]; /* chunk j of both halves of the tokens, then chunk j + 1 */

		fa_ldmatrix_x4_trans(part, v ^ j * 16);
#pragma unroll
		for (int n = 0; n < 2; n++) {
			const uint32_t a = part[n], b = part[2 + n];

			ret[n][j] = __byte_perm(a, CHUNKS == 4 ? a : b, 0x7160);
			ret[n][j + 1] = __byte_perm(b, CHUNKS == 4 ? b : a, 0x7160);
		}
	}
#pragma unroll
	for (int n = 0; n < 2; n++) {
#pragma unroll
		for (int j = 0; j < CHUNKS; j++)
			if (!(j & near))
				fa_sm90_paged_swap_if(ret[n][j], ret[n][j + near], t & 1);
#pragma unroll
		for (int j = 0; j < far; j++)
			fa_sm90_paged_swap_if(ret[n][j], ret[n][j + far], t & 2);
	}
}

/* @v: the lane's ldmatrix address. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_product(struct fa_warp_rows<C> &rows,
                                                      const uint32_t (&p)[C::ATOMS][4], uint32_t v)
{
	constexpr int chunks = C::DIM_V == 64 ? 4 : 8;

#pragma unroll
	for (int i = 0; i < C::DIM_V / 16 / chunks; i++) {
		uint32_t words[2][chunks];

		fa_sm90_codes_values<C, chunks>(words, v + i * 128);
#pragma unroll
		for (int j = 0; j < chunks; j++) {
			const int tile = 2 * (chunks * i + j);
			uint32_t even[2], odd[2];

#pragma unroll
			for (int n = 0; n < 2; n++)
				fa_quantised_unpack<C::STORE>(words[n][j], even[n], odd[n]);
#pragma unroll
			for (int a = 0; a < C::ATOMS; a++) {
				fa_mma_m16n8k16<fa_f16>(rows.out[a][tile], p[a], even[0], even[1]);
				fa_mma_m16n8k16<fa_f16>(rows.out[a][tile + 1], p[a], odd[0],
				                        odd[1]);
			}
		}
	}
}

/* Computes 16 tokens from @token on. @quarter: the warp's part of the tile at @stage. */
template <class C>
__device__ __forceinline__ void
fa_sm90_codes_strip(const struct fa_cuda_paged_attention &args,
                    const struct fa_cuda_paged_item &item, const fa_sm90_codes_q<C> &q,
                    const float (&factors)[2 * C::ATOMS], struct fa_warp_rows<C> &rows,
                    struct fa_quantised_v_unit<C> &unit, uint32_t stage, uint32_t quarter,
                    uint32_t rows_info, int32_t token, bool hides)
{
	struct fa_logits_rich logits(args.attention, 0);
	const uint32_t k = stage + quarter * C::QUARTER, v = k + C::K_BYTES;
	const uint32_t scales_k = stage + C::SCALES + quarter * 64, scales_v = scales_k + 256;
	struct fa_paged_visibility visible;
	uint32_t weights[C::ATOMS][4];
	float dots[C::ATOMS][2][4], scales[4] = { 1, 1, 1, 1 };
	bool numbers = true;

	fa_sm90_codes_dots<C>(dots, q, k);
	if (fa_quantised_of(args).token_scales)
		fa_quantised_scales(scales, scales_k);
#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			dots[r / 2][i / 2][r % 2 * 2 + i % 2] *= factors[r] * scales[i];
	logits.slope = 0;
	logits.apply(dots, 0);
	if (hides) {
		numbers = fa_sm90_paged_zero_invalid_v<C>(item, v, token);
		visible = fa_quantised_softmax<C, true>(args, item, rows, unit, weights, dots,
		                                        scales_v, rows_info, token);
	} else {
		visible = fa_quantised_softmax<C, false>(args, item, rows, unit, weights, dots,
		                                         scales_v, rows_info, token);
	}
	if (!numbers) {
		fa_quantised_move_nans<C>(rows, v, visible);
		/* Orders stores before the stage's next copy. */
		fa_proxy_fence_shared();
	}
	fa_sm90_codes_product<C>(rows, weights, v + fa_sm90_codes_v<C>());
}
