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
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/barrier.h"

#include <stdint.h>

/* One thread of the block, after a barrier of all that have stored. */
__device__ __forceinline__ void fa_done_count(const struct fa_cuda_done &done)
{
	fa_fence_device();
	if (fa_atomic_add(done.counter, 1) != done.last)
		return;
	fa_fence_system();
	fa_st_relaxed_system(done.word, done.value);
}

/* All threads of the block, last. */
__device__ __forceinline__ void fa_done(const struct fa_cuda_done &done)
{
	if (!done.word)
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
	if (!done.word)
		return;
	fa_barrier_sync(0, threads);
	if (threadIdx.x == first)
		fa_done_count(done);
}
