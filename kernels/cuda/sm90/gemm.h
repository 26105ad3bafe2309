/*
 * A tile's two products as wgmma groups, S = Q K^T and O += P V, and clearing of V's rows without
 * keys. All 128 threads of a consumer warpgroup call.
 */
#pragma once

#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/softmax.h"

#include <stdint.h>

/* Issues one wgmma group. @q: the consumer group's rows. If @side is not 0, ALIBI_MMA adds ALiBi
 * (alibi.h). */
template <class C>
__device__ __forceinline__ void fa_sm90_issue_dots(fa_sm90_dots<C> &dots, uint32_t q, uint32_t k,
                                                   uint32_t shared, uint32_t group, int32_t side)
{
	const uint64_t a = fa_wgmma_operand(q, 16), b = fa_wgmma_operand(k, 16);

	const auto dot = [&](void) {
#pragma unroll
		for (int d = 0; d < C::DIM / 16; d++)
			fa_wgmma<typename C::T, C::KEYS>::dots(
				dots, fa_wgmma_advance(a, d / 4 * C::Q_COLUMN + d % 4 * 32),
				fa_wgmma_advance(b, d / 4 * C::KV_COLUMN + d % 4 * 32), d > 0);
	};

	/* No common fence or commit: if the paths met inside a wgmma group, the compiler would emit
	 * an empty group. */
	if (C::ALIBI_MMA && side != 0) {
		fa_wgmma_fence();
		dot();
		fa_wgmma<typename C::T, C::KEYS>::dots(
			dots, fa_wgmma_operand(shared + C::ALIBI_Q_AT + group * 32, 16),
			fa_wgmma_operand(shared + C::ALIBI_K_AT + (side < 0 ? 32 : 0), 16), true);
		fa_wgmma_commit();
	} else {
		fa_wgmma_fence();
		dot();
		fa_wgmma_commit();
	}
}

/* O += P V as one wgmma group. */
template <class C>
__device__ __forceinline__ void fa_sm90_issue_product(fa_sm90_out_rows<C> &out,
                                                      const fa_sm90_p<C> &p, uint32_t v)
{
	const uint64_t b = fa_wgmma_operand(v, C::KV_COLUMN);

#pragma unroll
	for (int k = 0; k < C::KEYS / 16; k++)
		fa_wgmma<typename C::T, C::DIM_V>::add(
			out, p[k], fa_wgmma_advance(b, k * 16 * C::COLUMN_BYTES));
	fa_wgmma_commit();
}

/* Zeroes rows [@row, @end) of a V tile: rows outside of the sequence hold other data, and 0 times
 * NaN is NaN. Each group clears before its own products. Half-used columns are cleared whole, as
 * the swizzle mixes them. */
template <class C>
__device__ __forceinline__ void fa_sm90_zero_v_rows(uint32_t v, int32_t row, int32_t end,
                                                    uint32_t group)
{
	constexpr int chunks = C::COLUMNS_V * 8;

	const uint32_t thread = C::PAGED && C::SCORE_MOD
	                                ? __shfl_sync(~0u, threadIdx.x, threadIdx.x % 32)
	                                : threadIdx.x;

	for (int32_t i = row * chunks + thread % 128; i < end * chunks; i += 128)
		fa_st_shared_v4(v + i % chunks / 8 * C::KV_COLUMN + i / chunks * C::COLUMN_BYTES +
		                        i % 8 * 16,
		                make_uint4(0, 0, 0, 0));
	fa_proxy_fence_shared();
	fa_barrier_sync(C::group_barrier(group), 128);
}
