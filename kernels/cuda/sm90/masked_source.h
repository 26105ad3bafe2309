/*
 * Source of rows and keys in dense tensors with masks (common/mask-args.h): lists of blocks, patterns
 * of blocks, bits. Which tiles a block of rows has is known to the producer alone (masked_load.h). It
 * writes two words for each tile, one for each half of 64 keys; consumers read them when the tile has
 * arrived (masked_sight.h). So the memory that a client may change is read once for each block of
 * rows.
 */
#pragma once

#include "kernels/cuda/common/mask-args.h"
#include "kernels/cuda/sm90/dense_source.h"

#include <stdint.h>

/* The word of a half: its first key / HALF_KEYS, ... */
#define FA_SM90_HALF_KEY_MASK 0x7fffffu
/* ... a bit for each group that may see it, */
#define FA_SM90_HALF_SEEN(group) (1u << (23 + (group)))
/* four granules of 16 keys that all rows see by the pattern's stride (all set: no pattern), */
#define FA_SM90_HALF_GRANULES 25
/* and, in the first half's word, whether the tile is its block's last. */
#define FA_SM90_HALF_LAST (1u << 29)

__device__ __forceinline__ int32_t fa_sm90_half_key(uint32_t half)
{
	return (int32_t)(half & FA_SM90_HALF_KEY_MASK) * FA_SM90_HALF_KEYS;
}

__device__ __forceinline__ uint32_t fa_sm90_half_granules(uint32_t half)
{
	return half >> FA_SM90_HALF_GRANULES & 15;
}

/* What is added to a key block's number before it is compared with multiples of the stride. */
__device__ __forceinline__ uint32_t fa_sm90_pattern_shift(const struct fa_cuda_mask &mask,
                                                          int32_t head, int32_t group)
{
	const int64_t number = (int64_t)mask.pattern_first + head, step = mask.pattern_step;
	const int64_t product = step < 0 ? number / group * -step : number * step;

	return (uint32_t)((product + 1) % mask.pattern_stride);
}

__device__ __forceinline__ bool fa_sm90_pattern_strided(const struct fa_cuda_mask &mask,
                                                        uint32_t shift, int32_t key)
{
	return ((uint32_t)key / (uint32_t)mask.pattern_tokens + shift) %
	               (uint32_t)mask.pattern_stride ==
	       0;
}

/* Returns the first key that a row at @position sees as local, relative to @origin. */
__device__ __forceinline__ int32_t fa_sm90_pattern_near(const struct fa_cuda_mask &mask,
                                                        int32_t position, int32_t origin)
{
	const int32_t tokens = mask.pattern_tokens;
	const int32_t whole = position / tokens;
	const int64_t block = whole - (position - whole * tokens < 0);
	const int64_t key = (block - mask.pattern_local + 1) * tokens - origin;

	/* A sum with a key stays within int32. */
	return (int32_t)(key < -(1 << 30) ? -(1 << 30) : key > 1 << 30 ? 1 << 30 : key);
}

template <class C> struct fa_sm90_masked_scheduler : fa_sm90_dense_scheduler<C> {
	__device__ __forceinline__
	fa_sm90_masked_scheduler(const struct fa_cuda_masked_attention &args)
	    : fa_sm90_dense_scheduler<C>(args.attention)
	{
	}

	__device__ __forceinline__ bool next(const struct fa_cuda_masked_attention &args,
	                                     struct fa_sm90_block &ret_block,
	                                     struct fa_work &ret_work)
	{
		return fa_sm90_dense_scheduler<C>::next(args.attention, ret_block, ret_work);
	}
};

struct fa_sm90_masked : fa_sm90_dense {
	using ARGS = struct fa_cuda_masked_attention;
	template <class C> using SCHEDULER = struct fa_sm90_masked_scheduler<C>;
	template <class C> using PRODUCER_SCHEDULER = struct fa_sm90_masked_scheduler<C>;

	static __device__ __forceinline__ const struct fa_cuda_attention &
	attention(const ARGS &args)
	{
		return args.attention;
	}

	static __device__ __forceinline__ bool tails(const ARGS &)
	{
		return false;
	}

	static __device__ __forceinline__ void keep(const ARGS &, BLOCK &block, const WORK &,
	                                            int32_t row)
	{
		block.row = row;
	}

	static __device__ __forceinline__ WORK work_of(const ARGS &args, const BLOCK &block)
	{
		return fa_sm90_dense::work_of(args.attention, block);
	}

	template <class C>
	static __device__ __forceinline__ WORK find(const ARGS &args, const BLOCK &block, uint32_t)
	{
		return work_of(args, block);
	}

	static __device__ __forceinline__ const char *k_row(const ARGS &args, const WORK &work,
	                                                    int32_t key)
	{
		return fa_sm90_dense::k_row(args.attention, work, key);
	}

	static __device__ __forceinline__ const char *v_row(const ARGS &args, const WORK &work,
	                                                    int32_t key)
	{
		return fa_sm90_dense::v_row(args.attention, work, key);
	}
};
