/*
 * New tokens of a step of decoding, where the launch that attends puts them into the pages, too:
 * rows of K and V in the request's tensors (args.attention.k and v; NULL: all tokens are in pages
 * already). They are the last of their sequence, from item.append on. Every block that computes
 * them has their rows copied from the tensors, and nobody reads what is in the pages in their
 * place, so that it does not matter when they come there, and by whom: of each KV head by the
 * first row block's threads, at the beginning of the segment in which they are, while these wait
 * for Q and the first tile.
 *
 * The planner sees to it that all new tokens lie in some segment, that there are no slices, and
 * that rows of the tensors start on 16 bytes.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/bulk.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm80/paged_walk.h"

#include <stdint.h>

/* The page that a strip is in: its slot, and the strip's number there. */
template <class C>
__device__ __forceinline__ uint32_t fa_sm90_paged_find(const struct fa_cuda_paged_attention &args,
                                                       uint32_t table_start, uint32_t strip,
                                                       uint32_t &ret_in_page)
{
	const struct fa_cuda_pages &pages = args.pages;
	const uint32_t page = (uint32_t)(strip * pages.page_magic >> 32);

	ret_in_page = strip - page * pages.page_strips;
	if constexpr (C::SMALL)
		return ((const typename C::SMALL_ARGS &)args).table[table_start + page];
	else
		return pages.table[table_start + page];
}

/* What the loading warp is to know of an item's new tokens. */
struct fa_sm90_paged_new {
	const char *rows; /* K or V of token 0, if it were in the tensor */
	int32_t begin;    /* the first new token; INT32_MAX: all are in pages */
};

/* Of K or V of one head. */
template <class C>
__device__ __forceinline__ struct fa_sm90_paged_new
fa_sm90_paged_new_of(const struct fa_cuda_paged_attention &args, const fa_paged_walk_of<C> &walk,
                     bool is_v)
{
	const struct fa_cuda_tensor &from = is_v ? args.attention.v : args.attention.k;
	struct fa_sm90_paged_new made = { NULL, INT32_MAX };

	if (__builtin_expect(from.data != NULL, 0)) {
		made.begin = (int32_t)walk.item.append;
		made.rows = (const char *)from.data + walk.kv_head(args) * from.stride_head +
		            ((int64_t)walk.item.first_q - (int64_t)walk.item.append) *
		                    from.stride_token;
	}
	return made;
}

/* Starts the copies of a tile with new tokens, from @token on, of which @there are there: what
 * @from has of this lane's strip before them, then a row each. A whole warp's; arguments as of
 * fa_sm90_paged_copy(). */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_copy_new(const struct fa_cuda_paged_attention &args,
                       const struct fa_sm90_paged_new &fresh, const char *from, int32_t token,
                       int32_t there, uint32_t tile, uint32_t full, uint64_t policy)
{
	const uint32_t lane = threadIdx.x % 32, is_v = lane / 4 % 2;
	const int32_t old = max(fresh.begin - token, 0), quarter = (int32_t)(lane % 4);
	const int32_t rest = min(old - quarter * FA_CUDA_PAGED_STRIP, FA_CUDA_PAGED_STRIP);
	const int64_t stride = is_v ? args.attention.v.stride_token : args.attention.k.stride_token;
	const uint32_t to = tile + is_v * C::K_BYTES;

	if (lane < 8 && rest > 0)
		fa_bulk_load(to + quarter * C::QUARTER, from, rest * C::PITCH, full, policy);
#pragma unroll 1
	for (int32_t i = old + (int32_t)(lane / 8) * 4 + quarter; i < there; i += 16)
		fa_bulk_load(to + i * C::PITCH, fresh.rows + (token + i) * stride, C::PITCH, full,
		             policy);
}

/* What this thread puts into pages of a segment: every C::JOINED-th 16 bytes of the new tokens'
 * rows, K's before V's of each token. begin() asks for the first, end() needs it. */
template <class C> struct fa_sm90_paged_append {
	static constexpr uint32_t CHUNKS = C::PITCH / 16; /* of a row */

	int32_t token;  /* the segment's first new one */
	uint32_t count; /* of all threads */
	uint4 first;

	__device__ __forceinline__ uint4 get(const struct fa_cuda_paged_attention &args,
	                                     const fa_paged_walk_of<C> &walk, uint32_t i) const
	{
		const struct fa_sm90_paged_new fresh = fa_sm90_paged_new_of<C>(args, walk,
		                                                               i / CHUNKS % 2);
		const int64_t stride = i / CHUNKS % 2 ? args.attention.v.stride_token
		                                      : args.attention.k.stride_token;

		return *(const uint4 *)(fresh.rows +
		                        (token + (int32_t)(i / (2 * CHUNKS))) * stride +
		                        i % CHUNKS * 16);
	}

	__device__ __forceinline__ void begin(const struct fa_cuda_paged_attention &args,
	                                      const fa_paged_walk_of<C> &walk)
	{
		count = 0;
		first = make_uint4(0, 0, 0, 0);
		token = max(walk.begin, (int32_t)walk.item.append);
		if (__builtin_expect(args.attention.k.data && token < walk.end, 0)) {
			if (walk.row(args, C::ROWS) > 0)
				return;
			count = (uint32_t)(walk.end - token) * 2 * CHUNKS;
			if (threadIdx.x < count)
				first = get(args, walk, threadIdx.x);
		}
	}

	__device__ __forceinline__ void end(const struct fa_cuda_paged_attention &args,
	                                    const fa_paged_walk_of<C> &walk) const
	{
		const struct fa_cuda_pages &pages = args.pages;

#pragma unroll 1
		for (uint32_t i = threadIdx.x; i < count; i += C::JOINED) {
			const uint32_t at = (uint32_t)token + i / (2 * CHUNKS);
			uint32_t in_page;
			const uint32_t slot = fa_sm90_paged_find<C>(
				args, walk.item.table_start, at / FA_CUDA_PAGED_STRIP, in_page);
			const uint64_t row = ((uint64_t)walk.kv_head(args) * pages.page_strips +
			                      in_page) *
			                             FA_CUDA_PAGED_STRIP +
			                     at % FA_CUDA_PAGED_STRIP;
			char *const to = (i / CHUNKS % 2 ? pages.v : pages.k) +
			                 (uint64_t)slot * 256 + row * C::PITCH + i % CHUNKS * 16;

			fa_st_global_v4(to, i == threadIdx.x ? first : get(args, walk, i));
		}
		/* Where the host is told of parts, nobody counts blocks: what was stored here is to
		 * be in L2 before a share that the part's end waits for, which any thread may give. */
		if (__builtin_expect(count > 0 && !walk.whole && args.attention.done.parts > 0,
		                     0)) {
			fa_barrier_sync(C::COMPUTE, C::JOINED);
			fa_fence_device();
		}
	}
};
