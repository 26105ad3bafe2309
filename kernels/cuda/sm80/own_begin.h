/*
 * Begins attention over a client's own pages: a block reads lengths and cu_q, once, and divides the
 * work. Also appends to such pages. Items whose tiles do not fit 31 bits, and blocks of rows past
 * the list's end, are left out: sequences that claim more than total_q rows have such.
 */
#pragma once

#include "kernels/cuda/common/own_plan.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm80/paged_append_quantised.h"

#include <stdint.h>

#define FA_OWN_WARPS (FA_CUDA_TOKENS_THREADS / 32)
#define FA_OWN_SUMS 3

/* Counts of a sequence, or their sums. [0]: tiles of decode. [1]: items of decode; in the high
 * half, items of many rows. [2]: blocks of rows of the latter. */
struct fa_own_sums {
	uint64_t of[FA_OWN_SUMS];
};

/* The sums of all threads before this one; those of all are added to @total. The whole block;
 * @shared: FA_OWN_WARPS sums. */
__device__ __forceinline__ struct fa_own_sums
fa_own_scan(struct fa_own_sums own, struct fa_own_sums &total, struct fa_own_sums *shared)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	struct fa_own_sums before = total, sums = own;

#pragma unroll
	for (int i = 0; i < FA_OWN_SUMS; i++) {
#pragma unroll
		for (uint32_t apart = 1; apart < 32; apart *= 2) {
			const uint64_t other = __shfl_sync(~0u, sums.of[i], lane - apart);

			if (lane >= apart)
				sums.of[i] += other;
		}
	}
	if (lane == 31)
		shared[warp] = sums;
	__syncthreads(); /* the warps' sums are written */
#pragma unroll 1
	for (uint32_t w = 0; w < FA_OWN_WARPS; w++)
#pragma unroll
		for (int i = 0; i < FA_OWN_SUMS; i++) {
			total.of[i] += shared[w].of[i];
			if (w < warp)
				before.of[i] += shared[w].of[i];
		}
	__syncthreads(); /* all have read them */
#pragma unroll
	for (int i = 0; i < FA_OWN_SUMS; i++)
		before.of[i] += sums.of[i] - own.of[i];
	return before;
}

/* Returns the last of @n items, ascending by tile, that does not begin after @tile. */
__device__ __forceinline__ uint32_t fa_own_find(const struct fa_cuda_paged_item *items, uint32_t n,
                                                uint32_t tile)
{
	uint32_t low = 0, high = n;

#pragma unroll 1
	while (high - low > 1) {
		const uint32_t middle = low + (high - low) / 2;

		if (*(const volatile uint32_t *)&items[middle].tile <= tile)
			low = middle;
		else
			high = middle;
	}
	return low;
}

__device__ __forceinline__ void fa_own_divide(const struct fa_cuda_own_plan &p, uint32_t tiles,
                                              uint32_t items, uint32_t forward_items,
                                              uint32_t forward_blocks)
{
	const uint32_t listed = min(forward_blocks, p.forward_blocks_max);
	struct fa_cuda_own_ranges ranges = fa_own_ranges_of(p, tiles, items);

	ranges.forward_blocks = listed;
	if (threadIdx.x == 0)
		*p.ranges = ranges;
#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < ranges.blocks; i += FA_CUDA_TOKENS_THREADS)
		p.block_items[i] = fa_own_find(p.items, items,
		                               i * ranges.tiles_each + min(i, ranges.tiles_extra));
		/* The last rows of a sequence see the most keys. */
#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < listed; i += FA_CUDA_TOKENS_THREADS) {
		const uint32_t item = fa_own_find(p.forward_items, forward_items, i);
		const uint32_t first = p.forward_items[item].tile;
		const uint32_t n = (p.forward_items[item].n_q + p.forward_rows - 1) /
		                   p.forward_rows;

		p.forward_blocks[i] = { item, (first + n - 1 - i) * p.forward_rows };
	}
}

/* What is before a sequence's items, or an item. */
struct fa_own_place {
	uint64_t tiles;
	uint32_t items, forward_items, forward_blocks;
};

__device__ __forceinline__ uint32_t fa_own_prefix(const struct fa_cuda_own_plan &p, uint32_t b)
{
	const int32_t prefix = p.prefixes ? *(const volatile int32_t *)(p.prefixes + b) : 0;

	return prefix > 0 ? (uint32_t)prefix : 0;
}

/* Adds the item to @place; it is written if @WRITES, and if it and all before it fit. */
template <bool WRITES>
__device__ __forceinline__ void fa_own_add(const struct fa_cuda_own_plan &p, bool forward,
                                           struct fa_cuda_paged_item item,
                                           struct fa_own_place &place, struct fa_own_place &fits)
{
	if (forward) {
		const uint32_t at = place.forward_items++;

		item.tile = place.forward_blocks;
		place.forward_blocks += (item.n_q + p.forward_rows - 1) / p.forward_rows;
		if (!WRITES || at >= p.items_max)
			return;
		item.begin = 0;
		p.forward_items[at] = item;
		fits.forward_items = place.forward_items;
		fits.forward_blocks = place.forward_blocks;
	} else {
		const uint32_t at = place.items++;

		fa_own_divide_item(p, item);
		item.tile = (uint32_t)place.tiles;
		place.tiles += (uint64_t)item.parts * item.tiles;
		if (!WRITES || at >= p.items_max || place.tiles > INT32_MAX)
			return;
		p.items[at] = item;
		fits.items = place.items;
		fits.tiles = place.tiles;
	}
}

/* Adds a sequence's items. */
template <bool WRITES>
__device__ __forceinline__ void
fa_own_add_sequence(const struct fa_cuda_own_plan &p, const struct fa_cuda_paged_item &sequence,
                    uint32_t prefix, struct fa_own_place &place, struct fa_own_place &fits)
{
	const bool forward = sequence.n_q >= p.forward_from;

#pragma unroll 1
	for (uint32_t row = 0; row < sequence.n_q;) {
		const struct fa_cuda_paged_item part = fa_own_part(p, sequence, row, prefix,
		                                                   forward);

		fa_own_add<WRITES>(p, forward, part, place, fits);
		row += part.n_q;
	}
}

__device__ __forceinline__ void fa_own_plan(const struct fa_cuda_own_plan &p,
                                            struct fa_own_sums *shared)
{
	struct fa_own_sums total = {};
	struct fa_own_place fits = {};

#pragma unroll 1
	for (uint32_t first = 0; first < (uint32_t)p.batch; first += FA_CUDA_TOKENS_THREADS) {
		const uint32_t b = first + threadIdx.x;
		struct fa_cuda_paged_item sequence = {};
		struct fa_own_place place = {};
		struct fa_own_sums before;
		uint32_t prefix = 0;

		if (b < (uint32_t)p.batch) {
			sequence = fa_own_item(p, b);
			prefix = fa_own_prefix(p, b);
		}
		fa_own_add_sequence<false>(p, sequence, prefix, place, fits);
		before = fa_own_scan(
			{ { place.tiles, (uint64_t)place.forward_items << 32 | place.items,
		            place.forward_blocks } },
			total, shared);
		place = { before.of[0], (uint32_t)before.of[1], (uint32_t)(before.of[1] >> 32),
			  (uint32_t)before.of[2] };
		fa_own_add_sequence<true>(p, sequence, prefix, place, fits);
	}

	/* All ends with the last items that fit. */
#pragma unroll
	for (int mask = 16; mask > 0; mask /= 2) {
		const uint64_t other = __shfl_xor_sync(~0u, fits.tiles, mask);

		fits.tiles = fits.tiles > other ? fits.tiles : other;
		fits.items = max(fits.items, __shfl_xor_sync(~0u, fits.items, mask));
		fits.forward_items = max(fits.forward_items,
		                         __shfl_xor_sync(~0u, fits.forward_items, mask));
		fits.forward_blocks = max(fits.forward_blocks,
		                          __shfl_xor_sync(~0u, fits.forward_blocks, mask));
	}
	struct fa_own_place *const all = (struct fa_own_place *)shared;

	static_assert(sizeof(*all) <= sizeof(*shared), "one for each warp");
	if (threadIdx.x % 32 == 0)
		all[threadIdx.x / 32] = fits;
	__syncthreads(); /* the warps' results, and all items, are written */
	for (uint32_t w = 0; w < FA_OWN_WARPS; w++) {
		fits.tiles = fits.tiles > all[w].tiles ? fits.tiles : all[w].tiles;
		fits.items = max(fits.items, all[w].items);
		fits.forward_items = max(fits.forward_items, all[w].forward_items);
		fits.forward_blocks = max(fits.forward_blocks, all[w].forward_blocks);
	}
	/* Blocks of decode search as many as there may be. */
#pragma unroll 1
	for (uint32_t i = fits.items + threadIdx.x; i < p.items_max; i += FA_CUDA_TOKENS_THREADS)
		p.items[i].tile = UINT32_MAX;
	fa_own_divide(p, (uint32_t)fits.tiles, fits.items, fits.forward_items, fits.forward_blocks);
}

/* Returns which blocks head @head sees everywhere, modulo the stride. */
__device__ __forceinline__ uint32_t fa_own_column(const struct fa_cuda_own_plan &p, uint32_t head)
{
	const int64_t number = (int64_t)p.pattern_first + head, step = p.pattern_step;
	const int64_t first = step < 0 ? number / p.group * -step : number * step;

	return (uint32_t)(p.pattern_stride - 1 - first % p.pattern_stride);
}

/* Called by the one block of its launch. */
__device__ __forceinline__ void fa_own_begin(const struct fa_cuda_own_plan &p)
{
	extern __shared__ __align__(1024) char shared_memory[];

	if (p.pattern_stride > 0)
#pragma unroll 1
		for (uint32_t h = threadIdx.x; h < p.heads; h += FA_CUDA_TOKENS_THREADS)
			p.columns[h] = fa_own_column(p, h);

	fa_own_plan(p, (struct fa_own_sums *)shared_memory);
}

__device__ __forceinline__ void fa_own_append(const struct fa_cuda_own_append &p)
{
	const uint32_t rows = p.tokens * p.kv_heads, lane = threadIdx.x % 32;
	uint32_t row = blockIdx.x * FA_OWN_WARPS + threadIdx.x / 32;
	const bool is_v = row >= rows;

	row -= is_v ? rows : 0;
	if (row >= rows)
		return;

	const uint32_t token = row / p.kv_heads, head = row - token * p.kv_heads;
	const int64_t slot = *(const volatile int64_t *)(p.slots + token);
	const struct fa_cuda_tensor &tensor = is_v ? p.from_v : p.from_k;
	const char *const from = (const char *)tensor.data + token * tensor.stride_token +
	                         head * tensor.stride_head;
	const uint32_t dim = is_v ? p.head_dim_v : p.head_dim;

	if (!tensor.data || slot < 0 || slot >= (int64_t)p.pages * p.page_tokens)
		return;

	/* Below 2^39. */
	const int64_t page = slot / p.page_tokens, at = slot - page * p.page_tokens;
	char *const to = is_v ? p.v + page * p.v_page + at * p.v_token + head * p.v_head
	                      : p.k + page * p.k_page + at * p.k_token + head * p.k_head;

	if (p.store == FA_STORE_E4M3) {
		const float *const scales = is_v ? p.v_scales : p.k_scales;
		const float scale = scales ? scales[head] : 1;
		const float inverse = scale > 0 ? 1 / scale : 0;

		for (uint32_t i = lane; i < dim; i += 32) {
			float x = fa_element_get(p.dtype, from, (int32_t)i);

			/* NaN compares false and stays. */
			x = x > FLT_MAX ? FLT_MAX : x;
			x = x < -FLT_MAX ? -FLT_MAX : x;
			to[i] = (char)fa_e4m3_of(__fmul_rn(x, inverse));
		}
	} else if (p.dtype == FA_DTYPE_F32) {
		for (uint32_t i = lane; i < dim; i += 32)
			((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
	} else {
		for (uint32_t i = lane; i < dim; i += 32)
			((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
	}
}
