/*
 * A launch yields its SMs to more urgent work and resumes later (docs/kernels.md).
 *
 * The loading warp polls a word of device memory once per tile. Once it is >= the launch's turn
 * (turns only grow), a block saves its state (O, maxima and sums, in fp32), appends a record and
 * exits. The last block reports the number of records instead of completion, and the host
 * relaunches the kernel with a block per record. Results are the same to the bit.
 *
 * A resumed block computes at least one tile, so states need two sides, one read and one written. A
 * block without a free slot goes on.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/memory.h"

#include <stdint.h>

/* The launch is to yield. One thread. */
__device__ __forceinline__ bool fa_preempt_requested(const struct fa_cuda_preempt &yield)
{
	return yield.word && fa_ld_relaxed_system(yield.word) >= yield.turn;
}

__device__ __forceinline__ struct fa_cuda_preempt_area *
fa_preempt_area(const struct fa_cuda_preempt &yield)
{
	return (struct fa_cuda_preempt_area *)yield.area;
}

/* Allocates a slot for a state; false: none left. One thread. */
__device__ __forceinline__ bool fa_preempt_take_slot(const struct fa_cuda_preempt &yield,
                                                     uint32_t &ret_slot)
{
	const uint64_t before = fa_atomic_count(&fa_preempt_area(yield)->counts, (uint64_t)1 << 32);

	ret_slot = (uint32_t)(before >> 32);
	return ret_slot < yield.slots;
}

/* Returns the record's index. One thread. */
__device__ __forceinline__ uint32_t fa_preempt_append(const struct fa_cuda_preempt &yield,
                                                      const struct fa_cuda_preempt_record &record)
{
	const uint32_t place = (uint32_t)fa_atomic_count(&fa_preempt_area(yield)->counts, 1);

	*(uint4 *)&fa_preempt_area(yield)->records[yield.side][place] = make_uint4(
		record.block, record.done, record.left, record.slot);
	return place;
}

/* fa_done_count() of a launch that may have been preempted. */
__device__ __forceinline__ void fa_preempt_count(const struct fa_cuda_done &done,
                                                 const struct fa_cuda_preempt &yield)
{
	uint64_t counts = 0;

	fa_fence_system();
	if (fa_atomic_add(done.counter, 1) != done.last)
		return;
	if (yield.word) {
		/* Orders this after what other blocks counted before. */
		fa_fence_system();
		/* All other blocks have exited. */
		counts = fa_ld_relaxed_device(&fa_preempt_area(yield)->counts);
		if (counts)
			fa_preempt_area(yield)->counts = 0;
	}
	fa_fence_system();
	if ((uint32_t)counts) {
		fa_st_relaxed_system(yield.report, (uint32_t)counts);
	} else {
		fa_done_client(done);
		fa_st_relaxed_system(done.word, done.value);
	}
}
