/*
 * How wgmma kernels yield (common/preempt.h): a thread block stops before a tile of K. The producer
 * sets the stage's stop word and completes its k_full without a copy. Consumers read the word after
 * that wait, finish their tiles, and save O, offsets and sums.
 */
#pragma once

#include "kernels/cuda/common/preempt.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/softmax.h"

#include <stdint.h>

/* A stage's stop word; 0: a tile arrives. */
enum fa_sm90_stop_kind {
	FA_SM90_STOPPED = 1,
	FA_SM90_ENDED = 2,
};

/* Each thread's O, four floats at a time, then its offsets and sums. */
template <class C> struct fa_sm90_state {
	static constexpr uint32_t THREADS = C::GROUPS * 128, CHUNKS = C::DIM_V / 8 + 1;
	static constexpr uint32_t BYTES = FA_SM90_STATE_BYTES(C::DIM_V, C::GROUPS);
	static_assert(BYTES == THREADS * CHUNKS * 16, "the state size is what the host plans");

	static __device__ __forceinline__ float4 *at(const struct fa_cuda_preempt &yield,
	                                             uint32_t side, uint32_t slot, uint32_t group)
	{
		char *const states = (char *)yield.area + sizeof(struct fa_cuda_preempt_area);

		return (float4 *)(states + ((uint64_t)side * yield.slots + slot) * BYTES) +
		       group * 128 + threadIdx.x % 128;
	}
};

template <class C>
__device__ __forceinline__ void fa_sm90_store_state(float4 *at, const fa_sm90_out_rows<C> &out,
                                                    const struct fa_sm90_sums &sums)
{
	using STATE = fa_sm90_state<C>;

#pragma unroll
	for (uint32_t i = 0; i < STATE::CHUNKS - 1; i++)
		at[i * STATE::THREADS] = make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2],
		                                     out[4 * i + 3]);
	at[(STATE::CHUNKS - 1) * STATE::THREADS] = make_float4(sums.offset[0], sums.offset[1],
	                                                       sums.sum[0], sums.sum[1]);
}

template <class C>
__device__ __forceinline__ void
fa_sm90_save_state(const struct fa_cuda_preempt &yield, uint32_t slot, uint32_t group,
                   const fa_sm90_out_rows<C> &out, const struct fa_sm90_sums &sums)
{
	fa_sm90_store_state<C>(fa_sm90_state<C>::at(yield, yield.side, slot, group), out, sums);
}

template <class C>
__device__ __forceinline__ void
fa_sm90_load_state(const struct fa_cuda_preempt &yield, uint32_t slot, uint32_t group,
                   fa_sm90_out_rows<C> &ret_out, struct fa_sm90_sums &ret_sums)
{
	using STATE = fa_sm90_state<C>;
	const float4 *const at = STATE::at(yield, yield.side ^ 1, slot, group);
	float4 chunk;

#pragma unroll
	for (uint32_t i = 0; i < STATE::CHUNKS - 1; i++) {
		chunk = at[i * STATE::THREADS];
		ret_out[4 * i] = chunk.x;
		ret_out[4 * i + 1] = chunk.y;
		ret_out[4 * i + 2] = chunk.z;
		ret_out[4 * i + 3] = chunk.w;
	}
	chunk = at[(STATE::CHUNKS - 1) * STATE::THREADS];
	ret_sums.offset[0] = chunk.x;
	ret_sums.offset[1] = chunk.y;
	ret_sums.sum[0] = chunk.z;
	ret_sums.sum[1] = chunk.w;
}

/* The block's number in the first launch. */
template <class C> __device__ __forceinline__ uint32_t fa_sm90_block_index(void)
{
	extern __shared__ __align__(1024) char shared_memory[];

	return C::YIELDS ? fa_ld_shared(fa_shared_address(shared_memory) + C::RECORD) : blockIdx.x;
}

template <class C>
__device__ __forceinline__ uint32_t fa_sm90_blocks(const struct fa_cuda_attention &args)
{
	return C::YIELDS && args.preempt.resumed ? args.preempt.blocks : gridDim.x;
}

/* Fills in the words in shared memory; counts a block that must exit at once. One thread, before a
 * barrier of the block. */
template <class C>
__device__ __forceinline__ void fa_sm90_yield_begin(const struct fa_cuda_attention &args,
                                                    uint32_t shared)
{
	const struct fa_cuda_preempt &yield = args.preempt;
	struct fa_cuda_preempt_record record = { (uint32_t)fa_block_index(), 0, 0, 0 };
	bool ends;

	if (yield.resumed)
		record = fa_preempt_area(yield)->records[yield.side ^ 1][record.block];
	ends = !record.left && fa_preempt_requested(yield);
	fa_st_shared(shared + C::RECORD, record.block);
	fa_st_shared(shared + C::RECORD + 4, record.done);
	fa_st_shared(shared + C::RECORD + 8, record.left);
	fa_st_shared(shared + C::RECORD + 12, record.slot);
	fa_st_shared(shared + C::EXITS, ends);
#pragma unroll
	for (uint32_t at = C::STATE_SLOT; at < C::WORDS_END; at += 4)
		fa_st_shared(shared + at, 0);
	if (ends) {
		fa_preempt_append(yield, record);
		fa_preempt_count(args.done, yield);
	}
}

/* The producer warp calls this. */
template <class C>
__device__ __forceinline__ void fa_sm90_post_stop(uint32_t shared, uint32_t stage,
                                                  fa_sm90_stop_kind reason)
{
	if (threadIdx.x != 0)
		return;
	fa_st_shared(shared + C::STOP + 4 * stage, reason);
	fa_mbarrier_arrive(shared + C::K_FULL + 8 * stage);
}

/* Stops the block before a tile whose stage is free; the producer warp. @begun: blocks of rows
 * finished; @left: tiles left of the next, 0: all. False: no state slot is free. */
template <class C>
__device__ __forceinline__ bool fa_sm90_yield_stop(const struct fa_cuda_preempt &yield,
                                                   uint32_t shared, uint32_t stage, uint32_t begun,
                                                   uint32_t left)
{
	bool stops = true;

	if (threadIdx.x == 0) {
		uint32_t slot = 0;

		if (left)
			stops = fa_preempt_take_slot(yield, slot);
		if (stops) {
			fa_st_shared(shared + C::STATE_SLOT, slot);
			fa_st_shared(shared + C::BLOCKS_DONE, begun);
			fa_st_shared(shared + C::TILES_LEFT, 1 + left);
			fa_sm90_post_stop<C>(shared, stage, FA_SM90_STOPPED);
		}
	}
	return __any_sync(~0u, threadIdx.x == 0 && stops);
}

/* Appends a stopped block's record and counts the block's end. All consumer threads, last. */
template <class C>
__device__ __forceinline__ void fa_sm90_yield_end(const struct fa_cuda_attention &args,
                                                  uint32_t shared)
{
	const struct fa_cuda_preempt &yield = args.preempt;

	if (!args.done.word)
		return;
	/* Without the producer, which stored nothing to global memory and lacks the registers. */
	fa_barrier_sync(0, C::GROUPS * 128);
	if (threadIdx.x != 128)
		return;

	const uint32_t left = fa_ld_shared(shared + C::TILES_LEFT);

	if (left > 0) {
		struct fa_cuda_preempt_record record;

		record.block = fa_ld_shared(shared + C::RECORD);
		record.done = fa_ld_shared(shared + C::BLOCKS_DONE);
		record.left = left - 1;
		record.slot = fa_ld_shared(shared + C::STATE_SLOT);
		if (fa_ld_shared(shared + C::NONFINITE))
			record.slot |= FA_CUDA_PREEMPT_BROKEN;
		fa_preempt_append(yield, record);
	}
	fa_preempt_count(args.done, yield);
}
