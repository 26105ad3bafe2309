/*
 * Appends a decode step's new tokens to the pages in the launch that attends. Rows of K and V come
 * from the request's tensors (args.attention.k and .v; data NULL: none), from item.append on; no
 * block reads their place in the pages. Per KV head the first row block stores them, at the start
 * of the segment that has them. The planner guarantees that some segment has each new token, no
 * slices, and 16-byte aligned rows.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_segment.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/bulk.h"
#include "kernels/cuda/ptx/memory.h"

#include <stdint.h>

/* Returns the page's slot, and stores the strip's number in the page. */
template <class C>
__device__ __forceinline__ uint32_t
fa_sm90_paged_slot_of(const struct fa_cuda_paged_attention &args, uint32_t table_start,
                      uint32_t strip, uint32_t &ret_in_page)
{
	const struct fa_cuda_pages &pages = args.pages;
	const uint32_t page = (uint32_t)(strip * pages.page_magic >> 32);

	ret_in_page = strip - page * pages.page_strips;
	if constexpr (C::OWN)
		return fa_own_entry(args, table_start + page);
	else if constexpr (C::SMALL)
		return ((const typename C::SMALL_ARGS &)args).table[table_start + page];
	else
		return pages.table[table_start + page];
}

struct fa_sm90_paged_new_tokens {
	const char *rows; /* of token 0 in the tensor */
	int32_t begin;    /* first new token; INT32_MAX: none */
};

/* Finds new tokens of K or V, for the segment's KV head. */
template <class C>
__device__ __forceinline__ struct fa_sm90_paged_new_tokens
fa_sm90_paged_new_tokens_of(const struct fa_cuda_paged_attention &args,
                            const fa_paged_segment_of<C> &segment, bool is_v)
{
	const struct fa_cuda_tensor &from = is_v ? args.attention.v : args.attention.k;
	struct fa_sm90_paged_new_tokens made = { NULL, INT32_MAX };

	if (__builtin_expect(from.data != NULL, 0)) {
		made.begin = (int32_t)segment.item.append;
		made.rows = (const char *)from.data + segment.kv_head(args) * from.stride_head +
		            ((int64_t)segment.item.first_q - (int64_t)segment.item.append) *
		                    from.stride_token;
	}
	return made;
}

/* Issues the copies of a tile from @token on, @there tokens: old ones from this lane's strip at
 * @from, new ones a row each. Called by a warp; as fa_sm90_paged_copy(). */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_copy_new_tokens(const struct fa_cuda_paged_attention &args,
                              const struct fa_sm90_paged_new_tokens &new_tokens, const char *from,
                              int32_t token, int32_t there, uint32_t tile, uint32_t full,
                              uint64_t policy)
{
	const uint32_t lane = threadIdx.x % 32, is_v = lane / 4 % 2;
	const int32_t old = max(new_tokens.begin - token, 0), quarter = (int32_t)(lane % 4);
	const int32_t rest = min(old - quarter * FA_CUDA_PAGED_STRIP, FA_CUDA_PAGED_STRIP);
	const int64_t stride = is_v ? args.attention.v.stride_token : args.attention.k.stride_token;
	const uint32_t to = tile + is_v * C::K_BYTES;

	if (lane < 8 && rest > 0)
		fa_bulk_load(to + quarter * C::QUARTER, from, rest * C::PITCH, full, policy);
#pragma unroll 1
	for (int32_t i = old + (int32_t)(lane / 8) * 4 + quarter; i < there; i += 16)
		fa_bulk_load(to + i * C::PITCH, new_tokens.rows + (token + i) * stride, C::PITCH,
		             full, policy);
}

/* What a thread stores of a segment's new rows: every C::JOINED-th 16 bytes. begin() loads the
 * first, end() stores. */
template <class C> struct fa_sm90_paged_append {
	static constexpr uint32_t CHUNKS = C::PITCH / 16;

	int32_t token;
	uint32_t count; /* chunks of all threads together */
	uint4 first;

	__device__ __forceinline__ uint4 get(const struct fa_cuda_paged_attention &args,
	                                     const fa_paged_segment_of<C> &segment,
	                                     uint32_t i) const
	{
		const struct fa_sm90_paged_new_tokens new_tokens = fa_sm90_paged_new_tokens_of<C>(
			args, segment, i / CHUNKS % 2);
		const int64_t stride = i / CHUNKS % 2 ? args.attention.v.stride_token
		                                      : args.attention.k.stride_token;

		return *(const uint4 *)(new_tokens.rows +
		                        (token + (int32_t)(i / (2 * CHUNKS))) * stride +
		                        i % CHUNKS * 16);
	}

	__device__ __forceinline__ void begin(const struct fa_cuda_paged_attention &args,
	                                      const fa_paged_segment_of<C> &segment)
	{
		count = 0;
		first = make_uint4(0, 0, 0, 0);
		token = max(segment.begin, (int32_t)segment.item.append);
		if (__builtin_expect(args.attention.k.data && token < segment.end, 0)) {
			if (segment.row(args, C::ROWS) > 0)
				return;
			count = (uint32_t)(segment.end - token) * 2 * CHUNKS;
			if (threadIdx.x < count)
				first = get(args, segment, threadIdx.x);
		}
	}

	__device__ __forceinline__ void end(const struct fa_cuda_paged_attention &args,
	                                    const fa_paged_segment_of<C> &segment) const
	{
		const struct fa_cuda_pages &pages = args.pages;

#pragma unroll 1
		for (uint32_t i = threadIdx.x; i < count; i += C::JOINED) {
			const uint32_t at = (uint32_t)token + i / (2 * CHUNKS);
			uint32_t in_page;
			const uint32_t slot = fa_sm90_paged_slot_of<C>(
				args, segment.item.table_start, at / FA_CUDA_PAGED_STRIP, in_page);
			const uint64_t row = ((uint64_t)segment.kv_head(args) * pages.page_strips +
			                      in_page) *
			                             FA_CUDA_PAGED_STRIP +
			                     at % FA_CUDA_PAGED_STRIP;
			char *const to = (i / CHUNKS % 2 ? pages.v : pages.k) +
			                 (uint64_t)slot * 256 + row * C::PITCH + i % CHUNKS * 16;

			fa_st_global_v4(to, i == threadIdx.x ? first : get(args, segment, i));
		}
		/* Parts are signalled without counting blocks, so these stores must reach L2 before
		 * the block's partial result, which any of its threads may store. */
		if (__builtin_expect(count > 0 && !segment.whole && args.attention.done.parts > 0,
		                     0)) {
			fa_barrier_sync(C::COMPUTE, C::JOINED);
			fa_fence_device();
		}
	}
};
