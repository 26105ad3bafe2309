/*
 * How a launch gives way to what is more urgent, and goes on later. Blocks of threads that
 * compute block of rows after block of rows have an SM for long: a block of 128 rows over
 * 16,384 keys takes 200 us, one over 131,072 keys 1.6 ms, and only where a block of threads
 * ends do those of a higher priority get its SM.
 *
 * So the loading warp looks, once per tile of keys, at a word in the device's memory. The
 * host gives every launch a number, its turn, that is greater than all before; once the word
 * is no less than its turn, a block saves its state (O, maxima and sums, in fp32 as they
 * stand in registers), appends a record to a list and ends. Those that have not begun append
 * a record and end at once. The last block to end reports the length of the list instead of
 * the launch's end, and the host launches the kernel again, with a block for each record, when
 * the urgent work is done. What is computed is the same to the bit.
 *
 * Turns, not a flag, so that nobody has to lower anything: what is launched later has a later
 * turn, and no order between the word's store and a launch matters.
 *
 * Other ways, and why not:
 *   - a block that puts itself back into a queue and goes on as another: wants a queue in the
 *     kernel, and blocks that outlive their wait for it; here the host, which knows what is
 *     urgent, decides when to go on;
 *   - rows cut into ranges of keys of 40 us each, whose partial results are merged: costs
 *     about 10 % at 16,384 keys whether anybody asks or not;
 *   - a word in the host's memory: every look takes 1.5 us and goes over the bus, from 132
 *     SMs every 1.6 us.
 *
 * Whoever was resumed with a state computes at least one tile more, so every state of a list
 * is used in the next launch: two sides, of which a launch reads one and writes the other, are
 * enough. Whoever finds no slot for its state does not give way.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/memory.h"

#include <stdint.h>

/* One thread of a block: whether it is to give way. */
__device__ __forceinline__ bool fa_yield_asked(const struct fa_cuda_yield &yield)
{
	return yield.word && fa_ld_relaxed_system(yield.word) >= yield.turn;
}

__device__ __forceinline__ struct fa_cuda_yield_area *
fa_yield_area(const struct fa_cuda_yield &yield)
{
	return (struct fa_cuda_yield_area *)yield.area;
}

/* A slot for a state; one thread. False: there is none left. */
__device__ __forceinline__ bool fa_yield_take_slot(const struct fa_cuda_yield &yield,
                                                   uint32_t &ret_slot)
{
	const uint64_t before = fa_atomic_count(&fa_yield_area(yield)->counts, (uint64_t)1 << 32);

	ret_slot = (uint32_t)(before >> 32);
	return ret_slot < yield.slots;
}

/* Appends to the list; one thread. Returns the record's place. */
__device__ __forceinline__ uint32_t fa_yield_append(const struct fa_cuda_yield &yield,
                                                    const struct fa_cuda_yield_record &record)
{
	const uint32_t place = (uint32_t)fa_atomic_count(&fa_yield_area(yield)->counts, 1);

	*(uint4 *)&fa_yield_area(yield)->records[yield.side][place] = make_uint4(
		record.block, record.done, record.left, record.slot);
	return place;
}

/* As fa_done_count(), of a launch that may have left something. */
__device__ __forceinline__ void fa_yield_count(const struct fa_cuda_done &done,
                                               const struct fa_cuda_yield &yield)
{
	uint64_t counts = 0;

	fa_fence_system();
	if (fa_atomic_add(done.counter, 1) != done.last)
		return;
	if (yield.word) {
		/* What the others counted before them is seen after that. */
		fa_fence_system();
		/* Nobody else is there any more: the next launch begins with none. */
		counts = fa_ld_relaxed_device(&fa_yield_area(yield)->counts);
		if (counts)
			fa_yield_area(yield)->counts = 0;
	}
	fa_fence_system();
	if ((uint32_t)counts) {
		fa_st_relaxed_system(yield.report, (uint32_t)counts);
	} else {
		fa_done_early(done);
		fa_st_relaxed_system(done.word, done.value);
	}
}
