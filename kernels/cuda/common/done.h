/*
 * The end of a launch, told by its own last block: a store to the host's memory that comes
 * sooner than any that the driver could put behind the launch. All output of all blocks is
 * visible to whoever has seen it, in the host and on the device.
 *
 * Every block counts itself once, also one that had nothing to do. A barrier brings the
 * block's stores to the thread that counts, whose fence makes them the device's before the
 * count does; whoever counts last has seen, by the counter, that all others have done so. That
 * one's fence is the only one that reaches the host: causality is transitive in PTX's memory
 * model, whatever the scopes, so that all of it is the host's before the word is.
 * Stores by TMA must have completed (cp.async.bulk.wait_group 0, without .read) before the
 * barrier.
 *
 * To count takes a fence and a trip to L2 and back, behind everything else. Where few blocks
 * store all output (fa_cuda_done.parts), each tells the host of what it stored in a word of its
 * own instead, and nobody counts.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/barrier.h"

#include <stdint.h>

/* Behind the fence that the word is behind, and before the word, which lets go of what these
 * are in. */
__device__ __forceinline__ void fa_done_early(const struct fa_cuda_done &done)
{
	const uint32_t value = done.early_value;

	static_assert(FA_CUDA_EARLY_WORDS == 8, "two stores");
	if (!done.early)
		return;
	fa_st_relaxed_system(done.early, make_uint4(value, value, value, value));
	fa_st_relaxed_system(done.early + 4, make_uint4(value, value, value, value));
}

/* One thread of the block, after a barrier of all that have stored. */
__device__ __forceinline__ void fa_done_count(const struct fa_cuda_done &done)
{
	fa_fence_device();
	if (fa_atomic_add(done.counter, 1) != done.last)
		return;
	fa_fence_system();
	fa_done_early(done);
	fa_st_relaxed_system(done.word, done.value);
}

/*
 * One of the parts into which all output falls has ended. One thread, after a barrier of all
 * that have stored it. The launch is as good as ended when all parts have been told, although
 * blocks may still be on their way out: each has given its share of a part by then, behind what it
 * put into pages (sm90/paged_append.h), and reads and writes nothing that is not the device's own.
 */
__device__ __forceinline__ void fa_done_part(const struct fa_cuda_done &done, uint32_t part)
{
	fa_fence_system();
	if (done.early)
		for (uint32_t i = part; i < FA_CUDA_EARLY_WORDS; i += done.parts)
			fa_st_relaxed_system(done.early + i, done.early_value);
	fa_st_relaxed_system(done.word + part, done.value);
}

/* All threads of the block, last. */
__device__ __forceinline__ void fa_done(const struct fa_cuda_done &done)
{
	if (!done.word || done.parts > 0)
		return;
	__syncthreads();
	if (threadIdx.x == 0)
		fa_done_count(done);
}

/* The same where the first @first threads are not there any more, but have not stored
 * anything: all others, @threads, meet at barrier 0. */
__device__ __forceinline__ void fa_done_behind(const struct fa_cuda_done &done, uint32_t first,
                                               uint32_t threads)
{
	if (!done.word || done.parts > 0)
		return;
	fa_barrier_sync(0, threads);
	if (threadIdx.x == first)
		fa_done_count(done);
}
