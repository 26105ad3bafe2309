/*
 * Forward attention in fp32 on the CUDA cores, every variant in one kernel. A block has 16 groups
 * of 8 lanes. Group g computes rows g + 16 i; a lane has keys lane + 8 j of a tile, and four
 * columns of V at 4 lane + 32 j, without bank conflicts. Shuffles in a group reduce rows. P goes
 * through shared memory within its group, as [key][g * ROWS + i].
 *
 * K and V have one buffer each. Two barriers per tile, all threads: before the dot products (K has
 * arrived, V is free) and before the products with V (V has arrived, K is free).
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/warp_softmax.h"
#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/cp_async.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm80/kernels.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

/* Starts the copy of ROWS rows of @width elements to rows of D, PITCH elements apart,
 * zero-padded. */
template <int ROWS, int D, int PITCH>
__device__ __forceinline__ void fa_f32_load(float *tile, const char *base, int64_t stride,
                                            int32_t rows, int32_t width, bool aligned)
{
#pragma unroll 4
	for (int i = threadIdx.x; i < ROWS * (D / 4); i += FA_SM80_F32_THREADS) {
		const int32_t row = i / (D / 4), column = i % (D / 4) * 4;
		const bool there = row < rows && column < width;
		const float *source = (const float *)(base + row * stride) + column;
		const uint32_t target = fa_shared_address(tile + row * PITCH + column);

		if (aligned) {
			fa_cp_async_16_zfill(target, source, there ? 16 : 0);
			continue;
		}
#pragma unroll
		for (int e = 0; e < 4; e++)
			fa_cp_async_4_zfill(target + e * 4, source + e, there ? 4 : 0);
	}
}

/* @masked: a negative p marks a hidden key, which is skipped. */
template <int DIM_V, int ROWS, int TILE, int P_PITCH, bool masked>
__device__ __forceinline__ void fa_f32_product(float (&out)[ROWS][DIM_V / 32][4],
                                               const float *p_tile, const float *v_tile)
{
	const int32_t group = threadIdx.x / 8, lane = threadIdx.x % 8;

#pragma unroll 4
	for (int k = 0; k < TILE; k++) {
		float p[ROWS];

#pragma unroll
		for (int i = 0; i < ROWS; i++)
			p[i] = p_tile[k * P_PITCH + group * ROWS + i];
#pragma unroll
		for (int j = 0; j < DIM_V / 32; j++) {
			const float4 v = *(const float4 *)&v_tile[k * DIM_V + 32 * j + lane * 4];

#pragma unroll
			for (int i = 0; i < ROWS; i++) {
				if (masked && p[i] < 0)
					continue;
				out[i][j][0] = fmaf(p[i], v.x, out[i][j][0]);
				out[i][j][1] = fmaf(p[i], v.y, out[i][j][1]);
				out[i][j][2] = fmaf(p[i], v.z, out[i][j][2]);
				out[i][j][3] = fmaf(p[i], v.w, out[i][j][3]);
			}
		}
	}
}

template <int DIM, int DIM_V, int ROWS, int KEYS>
__device__ __forceinline__ void fa_sm80_forward_f32(const struct fa_cuda_attention &args)
{
	constexpr int BLOCK_ROWS = 16 * ROWS, TILE = 8 * KEYS;
	constexpr int PITCH = DIM + FA_SM80_F32_PAD, P_PITCH = BLOCK_ROWS + FA_SM80_F32_PAD;
	extern __shared__ __align__(1024) float shared_f32[];
	float *const q_tile = shared_f32;                  /* [BLOCK_ROWS][PITCH] */
	float *const k_tile = q_tile + BLOCK_ROWS * PITCH; /* [TILE][PITCH] */
	float *const v_tile = k_tile + TILE * PITCH;       /* [TILE][DIM_V] */
	float *const p_tile = v_tile + TILE * DIM_V;       /* [TILE][P_PITCH] */
	static_assert(FA_SM80_F32_SHARED_BYTES(DIM, DIM_V, ROWS, KEYS) ==
	                      4 * (BLOCK_ROWS * PITCH + TILE * (PITCH + DIM_V + P_PITCH)),
	              "the host's table must agree");

	const struct fa_work work = fa_work_get(args, BLOCK_ROWS);
	if (work.row >= work.n_q)
		return;

	const int32_t group = threadIdx.x / 8, lane = threadIdx.x % 8;
	const char *const k_base = fa_work_base(args.k, work.sequence, work.first_k,
	                                        work.head / args.group);
	const char *const v_base = fa_work_base(args.v, work.sequence, work.first_k,
	                                        work.head / args.group) +
	                           work.slice * DIM_V * 4;
	const int32_t width_v = args.head_dim_v - work.slice * DIM_V;
	const float slope = args.alibi_slopes ? args.alibi_slopes[work.head] * 1.44269504f : 0;

	const int32_t last_row = min(work.row + BLOCK_ROWS, work.n_q) - 1;
	const int32_t begin = max(0, work.row + work.diagonal - args.window_left);
	const int32_t end = min(work.n_k, last_row + work.diagonal + args.window_right + 1);
	const int32_t first_tile = begin / TILE;
	int32_t tile = end > begin ? (end - 1) / TILE : first_tile - 1;

	float sum[ROWS], offset[ROWS], out[ROWS][DIM_V / 32][4];

#pragma unroll
	for (int i = 0; i < ROWS; i++) {
		sum[i] = 0;
		offset[i] = FLT_MAX; /* see warp_softmax.h */
#pragma unroll
		for (int j = 0; j < DIM_V / 32; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				out[i][j][e] = 0;
	}

	if (tile >= first_tile) {
		fa_f32_load<BLOCK_ROWS, DIM, PITCH>(
			q_tile,
			fa_work_base(args.q, work.sequence, work.first_q, work.head) +
				work.row * args.q.stride_token,
			args.q.stride_token, work.n_q - work.row, args.head_dim, args.aligned);
		fa_f32_load<TILE, DIM, PITCH>(k_tile, k_base + tile * TILE * args.k.stride_token,
		                              args.k.stride_token, work.n_k - tile * TILE,
		                              args.head_dim, args.aligned);
	}

#pragma unroll 1
	for (; tile >= first_tile; tile--) {
		const int32_t key = tile * TILE;
		float dots[ROWS][KEYS];

		fa_cp_async_commit();
		fa_cp_async_wait<0>();
		__syncthreads(); /* K has arrived, V is free */
		fa_f32_load<TILE, DIM_V, DIM_V>(v_tile, v_base + key * args.v.stride_token,
		                                args.v.stride_token, work.n_k - key, width_v,
		                                args.aligned);
		fa_cp_async_commit();

#pragma unroll
		for (int i = 0; i < ROWS; i++)
#pragma unroll
			for (int j = 0; j < KEYS; j++)
				dots[i][j] = 0;
#pragma unroll 4
		for (int d = 0; d < DIM; d += 4) {
			float4 q[ROWS], k[KEYS];

#pragma unroll
			for (int i = 0; i < ROWS; i++)
				q[i] = *(const float4 *)&q_tile[(group + 16 * i) * PITCH + d];
#pragma unroll
			for (int j = 0; j < KEYS; j++)
				k[j] = *(const float4 *)&k_tile[(lane + 8 * j) * PITCH + d];
#pragma unroll
			for (int i = 0; i < ROWS; i++)
#pragma unroll
				for (int j = 0; j < KEYS; j++) {
					dots[i][j] = fmaf(q[i].x, k[j].x, dots[i][j]);
					dots[i][j] = fmaf(q[i].y, k[j].y, dots[i][j]);
					dots[i][j] = fmaf(q[i].z, k[j].z, dots[i][j]);
					dots[i][j] = fmaf(q[i].w, k[j].w, dots[i][j]);
				}
		}

#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const int32_t position = work.row + group + 16 * i + work.diagonal;
			const int32_t low = position - args.window_left;
			const int32_t high = min(work.n_k - 1, position + args.window_right);
			float max = -INFINITY;

#pragma unroll
			for (int j = 0; j < KEYS; j++) {
				const int32_t at = key + lane + 8 * j;
				float logit = args.cap_out != 0 ? args.cap_out * tanhf(dots[i][j] *
				                                                       args.cap_in)
				                                : dots[i][j] * args.scale_log2;

				if (slope != 0)
					logit -= slope * fabsf((float)(at - position));
				if (at < low || at > high)
					logit = -INFINITY;
				dots[i][j] = logit;
				max = fmaxf(max, logit);
			}
			max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
			max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
			max = fmaxf(max, __shfl_xor_sync(~0u, max, 4));

			const float lower = fminf(offset[i], fa_warp_exponent<float>() - max);
			const float scale = fa_ex2(lower - offset[i]);

			offset[i] = lower;
			sum[i] *= scale;
#pragma unroll
			for (int j = 0; j < DIM_V / 32; j++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					out[i][j][e] *= scale;
#pragma unroll
			for (int j = 0; j < KEYS; j++) {
				const int32_t at = key + lane + 8 * j;
				const float p = fa_ex2(dots[i][j] + lower);

				sum[i] += p;
				p_tile[(lane + 8 * j) * P_PITCH + group * ROWS + i] =
					at < low || at > high ? -1 : p;
			}
		}

		fa_cp_async_wait<0>();
		__syncthreads(); /* V and P have arrived, K is free */
		if (tile > first_tile)
			fa_f32_load<TILE, DIM, PITCH>(
				k_tile, k_base + (key - TILE) * args.k.stride_token,
				args.k.stride_token, TILE, args.head_dim, args.aligned);

		if (key + TILE > work.n_k || key < last_row + work.diagonal - args.window_left ||
		    key + TILE - 1 > work.row + work.diagonal + args.window_right)
			fa_f32_product<DIM_V, ROWS, TILE, P_PITCH, true>(out, p_tile, v_tile);
		else
			fa_f32_product<DIM_V, ROWS, TILE, P_PITCH, false>(out, p_tile, v_tile);
	}

	const float sink = args.sinks ? args.sinks[work.head] * 1.44269504f : -INFINITY;
	char *const out_base = (char *)fa_work_base(args.out, work.sequence, work.first_q,
	                                            work.head);

#pragma unroll
	for (int i = 0; i < ROWS; i++) {
		const int32_t row = work.row + group + 16 * i;
		float total = sum[i], max = -offset[i], scale;

		total += __shfl_xor_sync(~0u, total, 1);
		total += __shfl_xor_sync(~0u, total, 2);
		total += __shfl_xor_sync(~0u, total, 4);
		scale = total == 0 ? 0 : 1 / total;
		if (sink != -INFINITY) {
			const float top = fmaxf(max, sink);
			const float shrink = fa_ex2(max - top);

			total = total * shrink + fa_ex2(sink - top);
			scale = shrink / total;
			max = top;
		}
		if (row >= work.n_q)
			continue;
		if (args.lse && lane == 0 && work.slice == 0)
			args.lse[work.sequence * args.lse_stride_batch +
			         ((int64_t)work.first_q + row) * args.lse_stride_token +
			         work.head * args.lse_stride_head] =
				total == 0 ? -INFINITY : (max + log2f(total)) * 0.693147181f;
#pragma unroll
		for (int j = 0; j < DIM_V / 32; j++) {
			float *target = (float *)(out_base + row * args.out.stride_token) +
			                work.slice * DIM_V + 32 * j + lane * 4;

			if (32 * j + lane * 4 >= width_v)
				continue;
			if (args.aligned) {
				*(float4 *)target = make_float4(fa_mean_f32(out[i][j][0], scale),
				                                fa_mean_f32(out[i][j][1], scale),
				                                fa_mean_f32(out[i][j][2], scale),
				                                fa_mean_f32(out[i][j][3], scale));
				continue;
			}
#pragma unroll
			for (int e = 0; e < 4; e++)
				target[e] = fa_mean_f32(out[i][j][e], scale);
		}
	}
}
