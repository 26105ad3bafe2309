/*
 * What common/yield.h is for kernels on wgmma: a block of threads stops before a tile of K.
 * The loading warp says so in that tile's place, where a word in shared memory stands beside
 * the barrier; groups, which look at it when the barrier has let them pass, finish what they
 * have and save O, offsets and sums. (A warp that looks and does nothing else would see the
 * word sooner, but what it tells the loading warp costs that registers that it does not have.)
 */
#pragma once

#include "kernels/cuda/common/yield.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/softmax.h"

#include <stdint.h>

/* What the word of a stage says where no tile comes. */
enum fa_sm90_stop_kind {
	FA_SM90_STOPPED = 1, /* there are tiles left */
	FA_SM90_ENDED = 2,
};

/* A state: each thread's O, four floats at a time, then its offsets and sums. */
template <class C> struct fa_sm90_state {
	static constexpr uint32_t THREADS = C::GROUPS * 128, PIECES = C::DIM_V / 8 + 1;
	static constexpr uint32_t BYTES = FA_SM90_STATE_BYTES(C::DIM_V, C::GROUPS);
	static_assert(BYTES == THREADS * PIECES * 16, "the host's table must agree");

	static __device__ __forceinline__ float4 *at(const struct fa_cuda_yield &yield,
	                                             uint32_t side, uint32_t slot, uint32_t group)
	{
		char *const states = (char *)yield.area + sizeof(struct fa_cuda_yield_area);

		return (float4 *)(states + ((uint64_t)side * yield.slots + slot) * BYTES) +
		       group * 128 + threadIdx.x % 128;
	}
};

template <class C>
__device__ __forceinline__ void fa_sm90_save(const struct fa_cuda_yield &yield, uint32_t slot,
                                             uint32_t group, const fa_sm90_out_rows<C> &out,
                                             const struct fa_sm90_sums &sums)
{
	using STATE = fa_sm90_state<C>;
	float4 *const at = STATE::at(yield, yield.side, slot, group);

#pragma unroll
	for (uint32_t i = 0; i < STATE::PIECES - 1; i++)
		at[i * STATE::THREADS] = make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2],
		                                     out[4 * i + 3]);
	at[(STATE::PIECES - 1) * STATE::THREADS] = make_float4(sums.offset[0], sums.offset[1],
	                                                       sums.sum[0], sums.sum[1]);
}

template <class C>
__device__ __forceinline__ void fa_sm90_load_state(const struct fa_cuda_yield &yield, uint32_t slot,
                                                   uint32_t group, fa_sm90_out_rows<C> &ret_out,
                                                   struct fa_sm90_sums &ret_sums)
{
	using STATE = fa_sm90_state<C>;
	const float4 *const at = STATE::at(yield, yield.side ^ 1, slot, group);
	float4 piece;

#pragma unroll
	for (uint32_t i = 0; i < STATE::PIECES - 1; i++) {
		piece = at[i * STATE::THREADS];
		ret_out[4 * i] = piece.x;
		ret_out[4 * i + 1] = piece.y;
		ret_out[4 * i + 2] = piece.z;
		ret_out[4 * i + 3] = piece.w;
	}
	piece = at[(STATE::PIECES - 1) * STATE::THREADS];
	ret_sums.offset[0] = piece.x;
	ret_sums.offset[1] = piece.y;
	ret_sums.sum[0] = piece.z;
	ret_sums.sum[1] = piece.w;
}

/* Which block of the first launch this one is, or goes on with. */
template <class C> __device__ __forceinline__ uint32_t fa_sm90_block_index(void)
{
	extern __shared__ __align__(1024) char shared_memory[];

	return C::YIELDS ? fa_ld_shared(fa_shared_address(shared_memory) + C::RECORD) : blockIdx.x;
}

/* Of how many. */
template <class C>
__device__ __forceinline__ uint32_t fa_sm90_blocks(const struct fa_cuda_attention &args)
{
	return C::YIELDS && args.yield.resumed ? args.yield.blocks : gridDim.x;
}

/* One thread, before a barrier of the block: fills the words in shared memory. A block that is
 * to end at once has counted itself then. */
template <class C>
__device__ __forceinline__ void fa_sm90_begin(const struct fa_cuda_attention &args, uint32_t shared)
{
	const struct fa_cuda_yield &yield = args.yield;
	struct fa_cuda_yield_record record = { (uint32_t)fa_block_index(), 0, 0, 0 };
	bool ends;

	if (yield.resumed)
		record = fa_yield_area(yield)->records[yield.side ^ 1][record.block];
	ends = !record.left && fa_yield_asked(yield);
	fa_st_shared(shared + C::RECORD, record.block);
	fa_st_shared(shared + C::RECORD + 4, record.done);
	fa_st_shared(shared + C::RECORD + 8, record.left);
	fa_st_shared(shared + C::RECORD + 12, record.slot);
	fa_st_shared(shared + C::ENDS, ends);
#pragma unroll
	for (uint32_t at = C::SLOT; at < C::WORDS_END; at += 4)
		fa_st_shared(shared + at, 0);
	if (ends) {
		fa_yield_append(yield, record);
		fa_yield_count(args.done, yield);
	}
}

/* The loading warp: groups find no tile of K in that place, which is free. */
template <class C>
__device__ __forceinline__ void fa_sm90_say(uint32_t shared, uint32_t stage, fa_sm90_stop_kind kind)
{
	if (threadIdx.x != 0)
		return;
	fa_st_shared(shared + C::STOP + 4 * stage, kind);
	fa_mbarrier_arrive(shared + C::K_FULL + 8 * stage);
}

/*
 * The loading warp, before a tile of K, whose place is free: has the groups stop there. @begun
 * blocks of rows came before, of this one @left tiles are left, or all with 0. Returns false if
 * there is no slot for the state.
 */
template <class C>
__device__ __forceinline__ bool fa_sm90_stop(const struct fa_cuda_yield &yield, uint32_t shared,
                                             uint32_t stage, uint32_t begun, uint32_t left)
{
	bool stops = true;

	if (threadIdx.x == 0) {
		uint32_t slot = 0;

		if (left)
			stops = fa_yield_take_slot(yield, slot);
		if (stops) {
			fa_st_shared(shared + C::SLOT, slot);
			fa_st_shared(shared + C::BEGUN, begun);
			fa_st_shared(shared + C::LEFT, 1 + left);
			fa_sm90_say<C>(shared, stage, FA_SM90_STOPPED);
		}
	}
	return __any_sync(~0u, threadIdx.x == 0 && stops);
}

/* All threads that compute, last: the block's record, if it has stopped, and its end. */
template <class C>
__device__ __forceinline__ void fa_sm90_end(const struct fa_cuda_attention &args, uint32_t shared)
{
	const struct fa_cuda_yield &yield = args.yield;

	if (!args.done.word)
		return;
	/* Those who load have stored nothing, and have too few registers for more. */
	fa_barrier_sync(0, C::GROUPS * 128);
	if (threadIdx.x != 128)
		return;

	const uint32_t left = fa_ld_shared(shared + C::LEFT);

	if (left > 0) {
		struct fa_cuda_yield_record record;

		record.block = fa_ld_shared(shared + C::RECORD);
		record.done = fa_ld_shared(shared + C::BEGUN);
		record.left = left - 1;
		record.slot = fa_ld_shared(shared + C::SLOT);
		if (fa_ld_shared(shared + C::BROKEN))
			record.slot |= FA_CUDA_YIELD_BROKEN;
		fa_yield_append(yield, record);
	}
	fa_yield_count(args.done, yield);
}
