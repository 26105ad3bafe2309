/*
 * Decode of MLA: online softmax of a group's tile of 64 keys, and what becomes of keys that some row
 * does not see. A thread has two of its warp's 16 rows, g and g + 8, in the layout of ptx/wgmma.h.
 */
#pragma once

#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/latent_config.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* offset: added in the exponent, minus the row's maximum; at first FLT_MAX, with which hidden keys
 * (-inf) give 0. sum: over this thread's keys, of its group's tiles. */
struct fa_sm90_latent_rows {
	float offset[2], sum[2];

	__device__ __forceinline__ void reset(void)
	{
		offset[0] = offset[1] = FLT_MAX;
		sum[0] = sum[1] = 0;
	}

	/* Takes another offset. Returns the factor of the row's O. */
	__device__ __forceinline__ float move(int r, float to)
	{
		const float shrink = fa_ex2(to - offset[r]);

		sum[r] *= shrink;
		offset[r] = to;
		return shrink;
	}
};

/* The thread's first row. */
__device__ __forceinline__ uint32_t fa_sm90_latent_row(void)
{
	return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

/* Hides keys from rows that do not see them. @key: the tile's first. */
template <class C>
__device__ __forceinline__ void fa_sm90_latent_mask(float (&dots)[C::KEYS / 2], uint32_t rows_info,
                                                    int32_t key)
{
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const struct fa_paged_row info = fa_paged_row_get(rows_info,
		                                                  fa_sm90_latent_row() + 8 * r);
		const int32_t from = key + (int32_t)(threadIdx.x % 4 * 2);

#pragma unroll
		for (int j = 0; j < C::KEYS / 8; j++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				if (from + j * 8 + e < info.low || from + j * 8 + e >= info.high)
					dots[j * 4 + r * 2 + e] = -INFINITY;
	}
}

/* Raises a row's maximum to this tile's if it is unset or lags by more than 8. Returns whether a row
 * of the warp changed: the caller multiplies O by @ret_scale. */
template <class C>
__device__ __forceinline__ bool fa_sm90_latent_raise(struct fa_sm90_latent_rows &rows,
                                                     const float (&dots)[C::KEYS / 2], float factor,
                                                     float (&ret_scale)[2])
{
	float max[2];
	bool raise = false;

	const auto behind = [&](int r, float logit) {
		return fmaf(logit, factor, rows.offset[r]) > C::MAX_EXPONENT + 8;
	};

#pragma unroll
	for (int r = 0; r < 2; r++) {
		max[r] = fmaxf(dots[r * 2], dots[r * 2 + 1]);
#pragma unroll
		for (int j = 1; j < C::KEYS / 8; j++)
			max[r] = fmaxf(max[r], fmaxf(dots[j * 4 + r * 2], dots[j * 4 + r * 2 + 1]));
		raise |= behind(r, max[r]);
		ret_scale[r] = 1;
	}
	if (!__any_sync(~0u, raise))
		return false;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 1));
		max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 2));
		if (behind(r, max[r]))
			ret_scale[r] = rows.move(r, (float)C::MAX_EXPONENT - max[r] * factor);
	}
	return true;
}

/* Turns logits into P, as wgmma's A operand, and adds them to the sums. */
template <class C>
__device__ __forceinline__ void
fa_sm90_latent_exponentials(struct fa_sm90_latent_rows &rows, float (&dots)[C::KEYS / 2],
                            float factor, uint32_t (&ret_p)[C::KEYS / 16][4])
{
#pragma unroll
	for (int i = 0; i < C::KEYS / 2; i++) {
		dots[i] = fa_ex2(fmaf(dots[i], factor, rows.offset[i / 2 % 2]));
		rows.sum[i / 2 % 2] += dots[i];
	}
#pragma unroll
	for (int k = 0; k < C::KEYS / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			ret_p[k][i] = fa_pack<typename C::T>(dots[k * 8 + i * 2],
			                                     dots[k * 8 + i * 2 + 1]);
}

/* Stores P as a swizzled column of 64 keys, and the rows' offsets, for the other group. */
template <class C>
__device__ __forceinline__ void fa_sm90_latent_publish(uint32_t shared, uint32_t group,
                                                       const struct fa_sm90_latent_rows &rows,
                                                       const uint32_t (&p)[C::KEYS / 16][4])
{
	const uint32_t t = threadIdx.x % 4, g = threadIdx.x % 32 / 4, row = fa_sm90_latent_row();
	const uint32_t at = shared + C::P_AT + group * C::TILE_BYTES + row * 128 + t * 4;

	/* All warps have their logits of K's column that P overwrites. */
	fa_barrier_sync(C::GROUP + group, 128);
#pragma unroll
	for (int k = 0; k < C::KEYS / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			fa_st_shared(at + i % 2 * 1024 + ((k * 2 + i / 2) ^ g) * 16, p[k][i]);
	if (t == 0)
#pragma unroll
		for (int r = 0; r < 2; r++)
			fa_st_shared(shared + C::OFFSETS + (group * C::ROWS + row + 8 * r) * 4,
			             __float_as_uint(rows.offset[r]));
	fa_proxy_fence_shared();
	fa_barrier_arrive(C::P_READY + group, C::JOINED);
}

/* Waits for the other group's P and takes its offsets. Returns whether O is to be rescaled. */
template <class C>
__device__ __forceinline__ bool fa_sm90_latent_adopt(uint32_t shared, uint32_t other,
                                                     struct fa_sm90_latent_rows &rows,
                                                     float (&ret_scale)[2])
{
	const uint32_t row = fa_sm90_latent_row();
	bool moves = false;

	fa_barrier_sync(C::P_READY + other, C::JOINED);
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const float offset = __uint_as_float(
			fa_ld_shared(shared + C::OFFSETS + (other * C::ROWS + row + 8 * r) * 4));

		moves |= offset != rows.offset[r];
		ret_scale[r] = rows.move(r, offset);
	}
	return __any_sync(~0u, moves) != 0;
}

/* The thread's part of O, of each of the group's quarters of V. */
template <class C> using fa_sm90_latent_out = float[2][C::QUARTER_V / 2];

template <class C>
__device__ __forceinline__ void fa_sm90_latent_rescale(fa_sm90_latent_out<C> &out,
                                                       const float (&scale)[2])
{
#pragma unroll
	for (int half = 0; half < 2; half++)
#pragma unroll
		for (int i = 0; i < C::QUARTER_V / 2; i++)
			out[half][i] *= scale[i / 2 % 2];
}

/* One of two numbers in a word. */
template <class T> __device__ __forceinline__ float fa_sm90_latent_number(uint32_t both, bool last)
{
	if constexpr (std::is_same<T, fa_bf16>::value)
		return __uint_as_float(last ? both & 0xffff0000 : both << 16);
	else
		return fa_from_f16(last ? both >> 16 : both & 0xffff);
}

/* Adds P V of a tile by CUDA cores, without what rows do not see: 0 times NaN is NaN. @v: the group's
 * half of V; @p: P's column. */
template <class C>
__device__ __forceinline__ void fa_sm90_latent_isolate(fa_sm90_latent_out<C> &out, uint32_t v,
                                                       uint32_t p, uint32_t rows_info, int32_t key,
                                                       int32_t begin, int32_t end)
{
	const uint32_t t = threadIdx.x % 4, row = fa_sm90_latent_row();
	const struct fa_paged_row infos[2] = { fa_paged_row_get(rows_info, row),
		                               fa_paged_row_get(rows_info, row + 8) };

#pragma unroll 1
	for (uint32_t i = 0; i < C::KEYS; i++) {
		const int32_t at = key + (int32_t)i;
		float weight[2];
		bool sees[2];

		if (at < begin || at >= end)
			continue;
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const uint32_t both = fa_ld_shared(p + (row + 8 * r) * 128 +
			                                   ((i / 8) ^ (row % 8)) * 16 +
			                                   i % 8 / 2 * 4);

			sees[r] = at >= infos[r].low && at < infos[r].high;
			weight[r] = fa_sm90_latent_number<typename C::T>(both, i % 2);
		}
#pragma unroll
		for (int j = 0; j < C::DIM_V / 16; j++) {
			float *const to = &out[j / (C::QUARTER_V / 8)][j % (C::QUARTER_V / 8) * 4];
			const uint32_t both = fa_ld_shared(v + j / 8 * C::COLUMN + i * 128 +
			                                   ((j % 8) ^ (i % 8)) * 16 + t * 4);
			const float x = fa_sm90_latent_number<typename C::T>(both, false);
			const float y = fa_sm90_latent_number<typename C::T>(both, true);

#pragma unroll
			for (int r = 0; r < 2; r++)
				if (sees[r]) {
					to[r * 2] = fmaf(weight[r], x, to[r * 2]);
					to[r * 2 + 1] = fmaf(weight[r], y, to[r * 2 + 1]);
				}
		}
	}
}

/* Prepares the group's half of V of a tile of which some row does not see some key: zeroes rows that
 * are no tokens. Where V has infinities or NaNs, adds the tile's P V to O without what rows do not
 * see, and zeroes all of V. Called by the group's threads while no product of theirs with O is under
 * way. */
template <class C>
__device__ __forceinline__ void fa_sm90_latent_clean_v(fa_sm90_latent_out<C> &out, uint32_t shared,
                                                       uint32_t stage, uint32_t group, int32_t key,
                                                       const struct fa_cuda_paged_item &item)
{
	const uint32_t tile = shared + C::K_AT + stage * C::TILE_BYTES;
	const uint32_t v = tile + group * 2 * C::QUARTER_BYTES;
	constexpr uint32_t chunks = 2 * C::QUARTER_COLUMNS * 8;
	bool numbers = true;

	const auto place = [&](uint32_t i) {
		return v + i % chunks / 8 * C::COLUMN + i / chunks * 128 + i % 8 * 16;
	};

#pragma unroll 1
	for (uint32_t i = threadIdx.x % 128; i < C::KEYS * chunks; i += 128) {
		const int32_t token = key + (int32_t)(i / chunks);

		if (token < (int32_t)item.begin || token >= (int32_t)item.n_k) {
			fa_st_shared_v4(place(i), make_uint4(0, 0, 0, 0));
		} else {
			const uint4 value = fa_ld_shared_v4(place(i));
			uint32_t zeros = fa_fma_packed<typename C::T>(value.x, 0, 0);

			zeros = fa_fma_packed<typename C::T>(value.y, 0, zeros);
			zeros = fa_fma_packed<typename C::T>(value.z, 0, zeros);
			zeros = fa_fma_packed<typename C::T>(value.w, 0, zeros);
			numbers &= zeros == 0;
		}
	}
	fa_proxy_fence_shared();
	if (!fa_barrier_any(C::GROUP + group, 128, !numbers))
		return;
	fa_sm90_latent_isolate<C>(out, v, tile + (C::COLUMNS - 1) * C::COLUMN,
	                          shared + C::ROWS_INFO, key, (int32_t)item.begin,
	                          (int32_t)item.n_k);
	fa_barrier_sync(C::GROUP + group, 128); /* all have read V */
#pragma unroll 1
	for (uint32_t i = threadIdx.x % 128; i < C::KEYS * chunks; i += 128)
		fa_st_shared_v4(place(i), make_uint4(0, 0, 0, 0));
	fa_proxy_fence_shared();
	fa_barrier_sync(C::GROUP + group, 128); /* V is zero */
}
