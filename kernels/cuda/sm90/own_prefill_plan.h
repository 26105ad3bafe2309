/*
 * The plan of few blocks of rows over a client's own pages, which each block of threads makes in
 * shared memory. Reads the client's lengths and cu_q, once.
 */
#pragma once

#include "kernels/cuda/common/own_plan.h"
#include "kernels/cuda/ptx/memory.h"

#include <stdint.h>

__device__ __forceinline__ struct fa_cuda_own_prefill_plan *
fa_sm90_own_prefill_plan(const struct fa_cuda_paged_attention &args)
{
	return (struct fa_cuda_own_prefill_plan *)fa_own_shared_plan(args);
}

/* All threads of a block of at least FA_CUDA_OWN_PREFILL_BLOCKS. fa_thread_index() keeps values out
 * of registers that the main loop needs. */
template <class C>
__device__ __forceinline__ void fa_sm90_own_plan_prefill(const struct fa_cuda_paged_attention &all)
{
	const struct fa_cuda_own_plan &p = fa_own_of(all).plan;
	struct fa_cuda_own_prefill_plan *const plan = fa_sm90_own_prefill_plan(all);
	const uint32_t thread = fa_thread_index();
	uint32_t sequence = 0, rank = 0, cost = 0, listed;
	int32_t row = 0;

	fa_own_prefetch_table(all);
	static_assert(FA_CUDA_OWN_PREFILL_ITEMS <= 32, "one warp");
	static_assert(FA_CUDA_OWN_PREFILL_BLOCKS <= C::THREADS, "a thread for each");
	if (thread < 32) {
		struct fa_cuda_paged_item item = {};
		uint32_t blocks = 0, before;

		if (thread < (uint32_t)p.batch)
			item = fa_own_item(p, thread);
		if (item.n_q >= p.forward_from)
			blocks = (item.n_q + C::ROWS - 1) / C::ROWS;
		before = blocks;
#pragma unroll
		for (uint32_t apart = 1; apart < 32; apart *= 2) {
			const uint32_t other = __shfl_sync(~0u, before, thread - apart);

			before += thread >= apart ? other : 0;
		}
		item.tile = before - blocks;
		if (thread < FA_CUDA_OWN_PREFILL_ITEMS)
			plan->items[thread] = item;
		if (thread == 31)
			plan->blocks_n = min(before, p.forward_blocks_max);
	}
	__syncthreads(); /* the items are written */
	listed = plan->blocks_n;
	if (thread < listed) {
#pragma unroll 1
		for (uint32_t i = 1; i < FA_CUDA_OWN_PREFILL_ITEMS; i++)
			sequence = plan->items[i].tile <= thread ? i : sequence;

		const struct fa_cuda_paged_item &item = plan->items[sequence];
		const int32_t n_q = (int32_t)item.n_q, n_k = (int32_t)item.n_k;

		row = (int32_t)(thread - item.tile) * C::ROWS;
		cost = (uint32_t)max(0, min(n_k, min(row + C::ROWS, n_q) + n_k - n_q +
		                                         all.attention.window_right));
		plan->costs[thread] = cost;
	}
	__syncthreads(); /* the costs are written */
	if (thread < listed) {
		/* Longest first. */
#pragma unroll 1
		for (uint32_t i = 0; i < listed; i++)
			rank += plan->costs[i] > cost || (plan->costs[i] == cost && i < thread);
		plan->blocks[rank] = { sequence, (uint32_t)row };
	}
	__syncthreads(); /* the list is written */
}
