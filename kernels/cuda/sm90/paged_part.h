/*
 * What the decode kernels on bulk copies (paged_decode.h, paged_codes.h) have in common besides
 * their loader: rows that are no tokens, and the end of a segment. Besides what sm80/paged_part.h
 * wants, C, the kernel's config, gives are_numbers() of 16 bytes of V.
 */
#pragma once

#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/sm80/paged_part.h"
#include "kernels/cuda/sm80/paged_pieces.h"
#include "kernels/cuda/sm80/softmax.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* Exchanges @a and @b if @swap. */
__device__ __forceinline__ void fa_sm90_paged_exchange(uint32_t &a, uint32_t &b, bool swap)
{
	const uint32_t x = swap ? b : a, y = swap ? a : b;

	a = x;
	b = y;
}

/* Makes zeros of those of 16 rows of V, from @token on, that are not tokens of the item, and
 * says whether all of V are numbers then, the same in all lanes. @v: the first row. */
template <class C>
__device__ __forceinline__ bool fa_sm90_paged_clean(const struct fa_cuda_paged_item &item,
                                                    uint32_t v, int32_t token)
{
	constexpr uint32_t chunks = C::PITCH / 16;
	bool numbers = true;

#pragma unroll 1
	for (uint32_t i = threadIdx.x % 32; i < 16 * chunks; i += 32) {
		const int32_t at_token = token + (int32_t)(i / chunks);
		const uint32_t at = v + i * 16;

		if (at_token < (int32_t)item.begin || at_token >= (int32_t)item.n_k) {
			fa_st_shared_v4(at, make_uint4(0, 0, 0, 0));
		} else {
			numbers &= C::are_numbers(fa_ld_shared_v4(at));
		}
	}
	/* What was stored comes before the copy that takes its place, and before other lanes'
	 * loads. */
	fa_proxy_fence_shared();
	__syncwarp();
	return !__any_sync(~0u, !numbers);
}

/* Brings the warps' rows together and finishes the segment. All that compute. @place: in which order
 * the warps' are added up. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_end(const struct fa_cuda_paged_attention &args, const fa_paged_walk_of<C> &walk,
                  struct fa_sm80_rows<C> &rows, char *shared, uint32_t place)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	const uint32_t there = walk.rows(args, C::ROWS);
	const uint32_t share = fa_paged_share<C>(args, walk);
	float2 *const stats = (float2 *)(shared + C::STATS); /* [warp][row] */
	float *const merge = (float *)(shared + C::MERGE);
	constexpr uint32_t quads = C::MERGE_COLUMNS / 4;
	/* Of many warps' shares of four columns those of some are one thread's each. */
	constexpr uint32_t lanes = C::WARPS > 4 ? 8 : 32;
	static_assert(quads % lanes == 0 || lanes == 32, "a warp's lanes go on together");
	static_assert(C::WARPS % (32 / lanes) == 0, "each has as many");

#pragma unroll
	for (int r = 0; r < 2 * C::ATOMS; r++) {
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 1);
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 2);
		if (t == 0)
			stats[place * C::ROWS + g + 8 * r] = make_float2(-rows.offset[r],
			                                                 rows.sum[r]);
	}

#pragma unroll
	for (int step = 0; step < C::DIM_V / (int)C::MERGE_COLUMNS; step++) {
#pragma unroll
		for (int r = 0; r < 2 * C::ATOMS; r++)
#pragma unroll
			for (int j = 0; j < (int)C::MERGE_COLUMNS / 8; j++) {
				const int tile = step * (C::MERGE_COLUMNS / 8) + j,
					  half = r % 2 * 2;
				float *const at =
					&merge[(place * C::ROWS + g + 8 * r) * C::MERGE_PITCH];

				if (g + 8 * r >= there)
					continue;
				if constexpr (!C::CODES) {
					const float(&out)[4] = rows.out[r / 2][tile];

					*(float2 *)&at[8 * j + 2 * t] = make_float2(out[half],
					                                            out[half + 1]);
				} else if (j % 2 == 0) {
					/* Even columns of 16, and the odd ones. */
					const float(&even)[4] = rows.out[r / 2][tile];
					const float(&odd)[4] = rows.out[r / 2][tile + 1];

					*(float4 *)&at[8 * j + 4 * t] = make_float4(
						even[half], odd[half], even[half + 1],
						odd[half + 1]);
				}
			}
		/* The columns are there, and the stats. */
		fa_barrier_sync(C::COMPUTE, C::JOINED);
		for (uint32_t i = warp * lanes + lane % lanes; i < there * quads;
		     i += C::WARPS * lanes) {
			const uint32_t row = i / quads, quad = i % quads;
			const uint32_t column = step * C::MERGE_COLUMNS + 4 * quad;
			float max = -FLT_MAX, sum = 0, x = 0, y = 0, z = 0, w = 0;

#pragma unroll
			for (int from = 0; from < C::WARPS; from++)
				max = fmaxf(max, stats[from * C::ROWS + row].x);
/* More at once take more registers than there are beside O. */
#pragma unroll 4
			for (int from = lane / lanes; from < C::WARPS; from += 32 / lanes) {
				const float2 stat = stats[from * C::ROWS + row];
				const float4 out = *(const float4 *)&merge[(from * C::ROWS + row) *
				                                                   C::MERGE_PITCH +
				                                           4 * quad];
				const float weight = fa_ex2(stat.x - max);

				sum += weight * stat.y;
				x += weight * out.x;
				y += weight * out.y;
				z += weight * out.z;
				w += weight * out.w;
			}
#pragma unroll
			for (uint32_t apart = lanes; apart < 32; apart *= 2) {
				sum += __shfl_xor_sync(~0u, sum, apart);
				x += __shfl_xor_sync(~0u, x, apart);
				y += __shfl_xor_sync(~0u, y, apart);
				z += __shfl_xor_sync(~0u, z, apart);
				w += __shfl_xor_sync(~0u, w, apart);
			}
			if (lane >= lanes)
				continue;
			if (walk.whole) {
				const struct fa_paged_target target = fa_paged_target_of<C>(
					args, walk, row);
				const float factor = fa_paged_factor(
					args.attention, target.head, max, sum,
					column == 0 ? target.lse : NULL);

				fa_paged_store<C>(args, target.out, column, x * factor, y * factor);
				fa_paged_store<C>(args, target.out, column + 2, z * factor,
				                  w * factor);
			} else {
				const uint32_t at = share + row;

				*(float4 *)&args.partials[(size_t)at * C::DIM_V + column] =
					make_float4(x, y, z, w);
				if (column == 0)
					*(float2 *)&args.partial_sums[at * 2] = make_float2(max,
					                                                    sum);
			}
		}
		/* Nobody reads the columns any more, or Q. */
		fa_barrier_sync(C::COMPUTE, C::JOINED);
	}
	if (walk.whole)
		return;
	if constexpr (C::PIECES) {
		fa_paged_merge_pieces<C>(args, walk, (uint32_t *)(shared + C::STATS));
		return;
	}

	/* The barrier has put all shares before this thread's count, which releases and acquires
	 * for all of the block. */
	const uint32_t first = fa_paged_first_block_of(args, walk.tile);
	const uint32_t last = fa_paged_block_of(args, walk.tile + walk.item.tiles - 1);
	bool *const is_last = (bool *)(shared + C::LAST);

	if (threadIdx.x == 0)
		*is_last = fa_paged_arrive(&args.counters[first], args.epoch, last - first + 1);
	fa_barrier_sync(C::COMPUTE, C::JOINED); /* the answer is there */
	if (*is_last)
		fa_paged_reduce<C>(args, walk, first, last);
	fa_barrier_sync(C::COMPUTE, C::JOINED); /* everybody has read it */
}
