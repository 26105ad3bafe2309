/* Rows of O: where they are stored, what divides them, how a thread stores its part. */
#pragma once

#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/logits.h"
#include "kernels/cuda/sm90/softmax.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

template <class C>
__device__ __forceinline__ char *fa_sm90_out_row(const struct fa_cuda_attention &args,
                                                 const struct fa_work &work, int32_t first_row)
{
	return (char *)fa_work_base(args.out, work.sequence, work.first_q, work.head) +
	       first_row * args.out.stride_token + work.slice * C::DIM_V * 2;
}

/* Transposes 4 x 4 words among the four threads of a quad. */
__device__ __forceinline__ void fa_sm90_quad_transpose(uint32_t (&words)[4], uint32_t t)
{
#pragma unroll
	for (int step = 1; step <= 2; step *= 2)
#pragma unroll
		for (int n = 0; n < 2; n++) {
			uint32_t &a = words[step == 1 ? 2 * n : n];
			uint32_t &b = words[step == 1 ? 2 * n + 1 : n + 2];
			const bool high = t & step;
			const uint32_t other = __shfl_xor_sync(~0u, high ? a : b, step);

			if (high)
				a = other;
			else
				b = other;
		}
}

/* Quads of threads assemble 16-byte chunks. */
template <class C>
__device__ __forceinline__ void fa_sm90_store_out(const fa_sm90_out_rows<C> &out,
                                                  const float (&scale)[2],
                                                  const struct fa_cuda_attention &args,
                                                  const struct fa_work &work, int32_t first_row)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	const int32_t width = args.head_dim_v - work.slice * C::DIM_V;

#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int32_t row = first_row + threadIdx.x % 128 / 32 * 16 + r * 8 + g;
		char *const base = fa_sm90_out_row<C>(args, work, row);

#pragma unroll
		for (int j = 0; j < C::DIM_V / 8; j += 4) {
			uint32_t words[4];

#pragma unroll
			for (int i = 0; i < 4; i++)
				words[i] = fa_pack<typename C::T>(
					out[(j + i) * 4 + r * 2] * scale[r],
					out[(j + i) * 4 + r * 2 + 1] * scale[r]);
			fa_sm90_quad_transpose(words, t);
			if (row < work.n_q && (int32_t)(j + t) * 8 < width)
				*(uint4 *)(base + (j + t) * 16) = make_uint4(words[0], words[1],
				                                             words[2], words[3]);
		}
	}
}

template <class C>
__device__ __forceinline__ bool fa_sm90_is_nonfinite(const fa_sm90_out_rows<C> &out, float scale,
                                                     int r)
{
	float product = scale * 0;

#pragma unroll
	for (int j = 0; j < C::DIM_V / 8; j++)
#pragma unroll
		for (int e = 0; e < 2; e++)
			product = fmaf(out[j * 4 + r * 2 + e], 0, product);
	return product != 0;
}

/* The factor of row @r of O. Adds @sink (fa_sm90_sink()) to the sum, which may change @offset. */
template <class C>
__device__ __forceinline__ float fa_sm90_row_scale(float sink, float &offset, float &sum)
{
	/* With ALiBi almost nothing may be left of a row whose first tiles had the largest dot
	 * products: recompute it. */
	if (C::SCORE_MOD && C::FIXED_MAX && sum < 0x1p-60f && offset != FLT_MAX)
		return NAN;

	if (C::SINKS && sink != -INFINITY) {
		const float lower = fminf(offset, -sink), shrink = fa_ex2(lower - offset);

		sum = sum * shrink + fa_ex2(sink + lower);
		offset = lower;
		return sum < 0x1p100f ? shrink * fa_rcp(sum) : NAN;
	}
	/* Such a sum has overflown, or nearly: recompute the row. */
	return sum == 0 ? 0 : sum < 0x1p100f ? fa_rcp(sum) : NAN;
}
