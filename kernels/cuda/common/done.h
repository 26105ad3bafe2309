/*
 * Completion of a launch: its last block stores a word to host memory. Whoever sees the word sees
 * all output of all blocks, on host and device.
 *
 * Every block counts itself once. A barrier and a device fence order its stores before its count,
 * so the last block has observed all others, and only its fence needs system scope. TMA stores must
 * have completed (cp.async.bulk.wait_group 0, without .read) before the barrier. Where few blocks
 * store all output (fa_cuda_done.parts), each reports its part, and none counts.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/barrier.h"

#include <stdint.h>

/* Called between the fence and the store to done.word, which releases these stores. */
__device__ __forceinline__ void fa_done_client(const struct fa_cuda_done &done)
{
	const uint32_t value = done.client_value;

	static_assert(FA_CUDA_CLIENT_WORDS == 8, "two stores");
	if (!done.client_words)
		return;
	fa_st_relaxed_system(done.client_words, make_uint4(value, value, value, value));
	fa_st_relaxed_system(done.client_words + 4, make_uint4(value, value, value, value));
}

/* Counts this block. One thread, after a barrier of all that have stored. */
__device__ __forceinline__ void fa_done_count(const struct fa_cuda_done &done)
{
	fa_fence_device();
	if (fa_atomic_add(done.counter, 1) != done.last)
		return;
	fa_fence_system();
	fa_done_client(done);
	fa_st_relaxed_system(done.word, done.value);
}

/* Reports one part. One thread, after a barrier of all that have stored it. Blocks may still be
 * exiting when all parts are reported. */
__device__ __forceinline__ void fa_done_part(const struct fa_cuda_done &done, uint32_t part)
{
	fa_fence_system();
	if (done.client_words)
		for (uint32_t i = part; i < FA_CUDA_CLIENT_WORDS; i += done.parts)
			fa_st_relaxed_system(done.client_words + i, done.client_value);
	fa_st_relaxed_system(done.word + part, done.value);
}

/* Called by all threads of the block, as their last step. */
__device__ __forceinline__ void fa_done(const struct fa_cuda_done &done)
{
	if (!done.word || done.parts > 0)
		return;
	__syncthreads();
	if (threadIdx.x == 0)
		fa_done_count(done);
}

/* fa_done() where the first @first threads exited without storing. The other @threads meet at
 * barrier 0. */
__device__ __forceinline__ void fa_done_behind(const struct fa_cuda_done &done, uint32_t first,
                                               uint32_t threads)
{
	if (!done.word || done.parts > 0)
		return;
	fa_barrier_sync(0, threads);
	if (threadIdx.x == first)
		fa_done_count(done);
}
