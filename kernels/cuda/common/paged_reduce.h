/*
 * The last block to store a partial result of a part adds them up.
 */
#pragma once

#include "kernels/cuda/common/arrive.h"
#include "kernels/cuda/common/paged_rows.h"

#include <float.h>
#include <stdint.h>

template <class C>
__device__ __forceinline__ uint32_t fa_paged_partial_row(const struct fa_cuda_paged_attention &args,
                                                         const fa_paged_segment_of<C> &segment)
{
	if constexpr (C::SPLIT_ITEMS)
		return segment.place * args.partial_rows;
	else
		return (2 * blockIdx.x + !segment.first) * C::ROWS;
}

template <class C>
__device__ __forceinline__ void fa_paged_reduce(const struct fa_cuda_paged_attention &args,
                                                const fa_paged_segment_of<C> &segment,
                                                uint32_t first, uint32_t last)
{
	constexpr uint32_t quads = C::DIM_V / 4;
	constexpr int at_once = 16;
	/* Only the first block may have had an earlier part. */
	const uint32_t start = fa_paged_ranges_of<C::OWN>(args).first_tile(first);
	const uint32_t first_place = 2 * first + (start < segment.tile);
	const uint32_t rows = segment.rows(args, C::ROWS);

	for (uint32_t i = threadIdx.x; i < rows * quads; i += C::JOINED) {
		const uint32_t row = i / quads, quad = i % quads;
		const struct fa_paged_out_row target = fa_paged_out_row_of<C>(args, segment, row);
		float max = -FLT_MAX, sum = 0, x = 0, y = 0, z = 0, w = 0;

#pragma unroll 1
		for (uint32_t block = first; block <= last; block += at_once) {
			float2 share[at_once];
			float4 out[at_once];
			float top = max;

#pragma unroll
			for (int j = 0; j < at_once; j++) {
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
		const uint32_t column = segment.slice(args) * C::DIM_V + 4 * quad;

		fa_paged_store<C>(args, target.out, column, x, y, factor);
		fa_paged_store<C>(args, target.out, column + 2, z, w, factor);
	}
}
