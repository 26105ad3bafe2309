/*
 * A client's own pages (struct fa_cuda_own): where a token's rows are, and how the device's plan
 * divides the work. What is read from the client's table is bounded.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"

#include <stdint.h>

__device__ __forceinline__ const struct fa_cuda_own &
fa_own_of(const struct fa_cuda_paged_attention &args)
{
	return ((const struct fa_cuda_paged_attention_own &)args).own;
}

/* Where the plan is. NO: not over a client's own pages. PLANNED: in memory. PLANS: also in shared
 * memory, if the block makes its own. */
#define FA_OWN_NO 0
#define FA_OWN_PLANNED 1
#define FA_OWN_PLANS 2

__device__ __forceinline__ struct fa_cuda_own_shared_plan *
fa_own_shared_plan(const struct fa_cuda_paged_attention &args)
{
	extern __shared__ __align__(1024) char shared_memory[];

	return (struct fa_cuda_own_shared_plan *)(shared_memory + fa_own_of(args).shared_plan);
}

/* The same in shared memory; computed anew at each call, which saves registers. */
__device__ __forceinline__ uint32_t fa_own_plan_address(const struct fa_cuda_paged_attention &args)
{
	extern __shared__ __align__(1024) char shared_memory[];

	return fa_shared_address(shared_memory) + fa_own_of(args).shared_plan +
	       (uint32_t)fa_opaque_zero();
}

__device__ __forceinline__ struct fa_cuda_own_packed_plan *
fa_own_packed_plan(const struct fa_cuda_paged_attention &args)
{
	return (struct fa_cuda_own_packed_plan *)fa_own_shared_plan(args);
}

template <int OWN>
__device__ __forceinline__ const struct fa_cuda_own_ranges *
fa_own_ranges(const struct fa_cuda_paged_attention &args)
{
	if constexpr (OWN == FA_OWN_PLANNED)
		return fa_own_of(args).ranges;
	return fa_own_of(args).ranges ? fa_own_of(args).ranges : &fa_own_shared_plan(args)->ranges;
}

template <int OWN>
__device__ __forceinline__ const struct fa_cuda_paged_item *
fa_own_items(const struct fa_cuda_paged_attention &args)
{
	if constexpr (OWN == FA_OWN_PLANS)
		if (!fa_own_of(args).ranges)
			return fa_own_shared_plan(args)->items;
	return args.items;
}

/* The ranges of tiles of a launch's blocks (paged-args.h). */
struct fa_paged_ranges {
	uint32_t each, extra;

	__device__ __forceinline__ uint32_t first_tile(uint32_t block) const
	{
		return block * each + min(block, extra);
	}
};

template <int OWN>
__device__ __forceinline__ struct fa_paged_ranges
fa_paged_ranges_of(const struct fa_cuda_paged_attention &args)
{
	if constexpr (OWN) {
		const uint2 words = *(const uint2 *)fa_own_ranges<OWN>(args);

		return { words.x, words.y };
	} else {
		return { args.tiles_each, args.tiles_extra };
	}
}

template <int OWN>
__device__ __forceinline__ bool fa_own_has_tiles(const struct fa_cuda_paged_attention &args)
{
	return blockIdx.x < fa_own_ranges<OWN>(args)->blocks;
}

/* Returns the number of 64-token tiles that a tile of the plan stands for. */
template <int OWN>
__device__ __forceinline__ uint32_t fa_own_tile_size(const struct fa_cuda_paged_attention &args)
{
	/* One such tile has all keys; added to a first key it stays within int32. */
	if constexpr (OWN)
		return fa_own_of(args).whole ? 1u << 24 : 1;
	else
		return 1;
}

/* Prefetches the table before lengths tell which entries are needed. */
__device__ __forceinline__ void fa_own_prefetch_table(const struct fa_cuda_paged_attention &args)
{
	const uint32_t thread = fa_thread_index(), at = (blockIdx.x * 32 + thread) * 128;

	if (thread < 32 && at < fa_own_of(args).table_bytes)
		fa_prefetch((const char *)args.pages.table + at);
}

/* Reads an entry of the table once, and bounds it. */
__device__ __forceinline__ uint32_t fa_own_entry(const struct fa_cuda_paged_attention &args,
                                                 uint32_t index)
{
	return min(*(const volatile uint32_t *)(args.pages.table + index),
	           fa_own_of(args).last_page);
}

/* The page of token @at of the sequence whose entries begin at @table_start, and the token's index
 * in it. */
__device__ __forceinline__ uint32_t fa_own_page(const struct fa_cuda_paged_attention &args,
                                                uint32_t table_start, int32_t at,
                                                uint32_t &ret_in_page)
{
	const struct fa_cuda_own &own = fa_own_of(args);
	const uint32_t page = (uint32_t)((uint32_t)at * own.page_magic >> own.page_shift);

	ret_in_page = (uint32_t)at - page * own.page_tokens;
	return fa_own_entry(args, table_start + page);
}

/* Loads 16 bytes of elements of @BYTES, which alone they are aligned to. */
template <int BYTES> __device__ __forceinline__ uint4 fa_own_load_elements(const char *from)
{
	uint32_t words[4] = { 0, 0, 0, 0 };

#pragma unroll
	for (int i = 0; i < 16 / BYTES; i++) {
		uint32_t element;

		if constexpr (BYTES == 1)
			element = *(const uint8_t *)(from + i);
		else if constexpr (BYTES == 2)
			element = *(const uint16_t *)(from + 2 * i);
		else
			element = *(const uint32_t *)(from + 4 * i);
		words[i * BYTES / 4] |= element << (i * BYTES % 4 * 8);
	}
	return make_uint4(words[0], words[1], words[2], words[3]);
}

/* True for kernels that compute local and strided blocks. One has no registers for them. */
template <class C>
constexpr bool fa_own_patterns = C::OWN && !C::PRECOMPUTED &&
                                 !(C::QUANTISED && C::DIM == FA_CUDA_OWN_CODES_NO_PATTERN);

/* A block of a pattern, modulo the stride, and the position from which on rows see it only if that is
 * their column. */
struct fa_own_block {
	int32_t column, end;
};

/* The block of the strip that begins with @token. */
__device__ __forceinline__ struct fa_own_block fa_own_block_of(const struct fa_cuda_own &own,
                                                               int32_t token)
{
	const int32_t block = (int32_t)((uint32_t)token / FA_CUDA_PAGED_STRIP / own.pattern_strips);

	return { block % own.pattern_stride, (block + own.pattern_local) * own.pattern_tokens };
}

/* True if some row from position @first on, of a head of the KV head, may see the strip. A whole
 * warp. */
__device__ __forceinline__ bool fa_own_sees(const struct fa_cuda_paged_attention &args,
                                            int32_t first, uint32_t kv_head, int32_t token)
{
	const struct fa_own_block block = fa_own_block_of(fa_own_of(args), token);
	const uint32_t group = args.attention.group;
	bool sees = block.end > first;

	for (uint32_t i = fa_thread_index() % 32; i < group && !sees; i += 32)
		sees = fa_own_of(args).columns[kv_head * group + i] == (uint32_t)block.column;
	return __any_sync(~0u, sees);
}
