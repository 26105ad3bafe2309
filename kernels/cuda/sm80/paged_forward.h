/*
 * Forward kernels over pages, for many query rows: forward.h with a SOURCE (source.h) that looks up
 * the page of each 16 keys. A block has rows of one sequence and query head, from the plan's list,
 * longest first.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/sm80/forward.h"

#include <stddef.h>
#include <stdint.h>

struct fa_sm80_paged_work {
	int32_t sequence;
	int32_t head, slice;
	int32_t row;
	int32_t n_q, n_k, diagonal;
	uint32_t first_q;
	int32_t first;
	uint32_t table_start;
};

/* Where a tile's keys lie. Lane l of each warp knows the page of 16 keys, from key 16 * (l %
 * groups) on: of the tile to load, and of the next. */
template <int KEYS> struct fa_sm80_paged_keys {
	static constexpr int groups = KEYS / 16;
	static_assert(groups <= 32, "a lane for each");

	const struct fa_cuda_pages &pages;
	uint32_t table_start;
	int32_t key;
	int32_t begin;
	uint32_t slot, next_slot;

	__device__ __forceinline__ fa_sm80_paged_keys(const struct fa_cuda_pages &all,
	                                              const struct fa_sm80_paged_work &work,
	                                              int32_t first_key)
	    : pages(all)
	{
		table_start = work.table_start;
		begin = work.first;
		key = first_key;
		slot = look_up(key, work.n_k);
		next_slot = look_up(key - KEYS, work.n_k);
	}

	__device__ __forceinline__ uint32_t look_up(int32_t first_key,
	                                            int32_t end = INT32_MAX) const
	{
		const int32_t at = first_key + (int32_t)(fa_thread_index() % groups) * 16;

		/* Pages without visible keys need no entry. */
		if (at + 16 <= begin || at >= end)
			return 0;
		return pages.table[table_start +
		                   (uint32_t)((uint32_t)(at / 16) * pages.page_magic >> 32)];
	}

	__device__ __forceinline__ void retreat(void)
	{
		key -= KEYS;
		slot = next_slot;
		next_slot = look_up(key - KEYS);
	}

	/* In units of 256 bytes: 16 rows of any width are a whole number of them. */
	__device__ __forceinline__ uint32_t place(uint32_t row_bytes) const
	{
		const uint32_t strip = key / 16 + fa_thread_index() % groups;
		const uint32_t page = (uint32_t)(strip * pages.page_magic >> 32);

		return slot + (strip - page * pages.page_strips) * (row_bytes / 16);
	}
};

/* fa_loader for K or V in pages, advanced by fa_sm80_paged_keys. */
template <int KEYS, int D, int THREADS> struct fa_sm80_paged_loader {
	static constexpr int lanes = fa_swizzle<D>::lanes;
	static constexpr int pass = THREADS / lanes;
	static constexpr int columns = D / 8 / lanes;
	static_assert(D / 8 % lanes == 0 && KEYS % pass == 0 && pass % 8 == 0 && pass <= 16,
	              "a pass lies in 16 keys");

	const char *pool; /* slot 0's; uniform */
	uint32_t chunks;  /* bytes from pool to this thread's chunks within 16 keys */
	uint32_t row_bytes;
	uint32_t shared;
	uint32_t bytes[columns];

	__device__ __forceinline__ fa_sm80_paged_loader(const char *slots, uint64_t offset,
	                                                uint32_t row_stride, int32_t width)
	{
		const int32_t row = threadIdx.x / lanes, chunk = threadIdx.x % lanes;

		pool = slots;
		chunks = (uint32_t)(offset / 16) + row * (row_stride / 16) + chunk;
		row_bytes = row_stride;
		shared = fa_swizzle<D>::offset(row, chunk);
#pragma unroll
		for (int c = 0; c < columns; c++)
			bytes[c] = (chunk + c * lanes) * 8 < width ? 16 : 0;
	}

	/* Rows [low, high) of the tile; others become zero. @delta: bytes from the pool to the
	 * rows, added to @place. */
	template <bool PART>
	__device__ __forceinline__ void copy(uint32_t tile, uint32_t place, int32_t low,
	                                     int32_t high, ptrdiff_t delta) const
	{
		const int32_t row = PART ? fa_thread_index() / lanes : 0;

#pragma unroll
		for (int i = 0; i < KEYS / pass; i++) {
			const uint64_t at = __shfl_sync(~0u, place, i * pass / 16);
			const char *const from = pool + delta + (uint64_t)chunks * 16 + at * 256 +
			                         i * pass % 16 * row_bytes;
			const bool there = !PART ||
			                   (i * pass + row >= low && i * pass + row < high);

#pragma unroll
			for (int c = 0; c < columns; c++)
				fa_cp_async_16_zfill(tile + shared + i * pass * D * 2 +
				                             c * lanes * 16,
				                     from + c * lanes * 16, there ? bytes[c] : 0);
		}
	}

	__device__ __forceinline__ void
	copy_tile(uint32_t tile, const struct fa_sm80_paged_keys<KEYS> &keys, ptrdiff_t delta) const
	{
		if (keys.key >= keys.begin)
			copy<false>(tile, keys.place(row_bytes), 0, KEYS, delta);
		else
			copy<true>(tile, keys.place(row_bytes), keys.begin - keys.key, KEYS, delta);
	}

	__device__ __forceinline__ void copy_part(uint32_t tile,
	                                          const struct fa_sm80_paged_keys<KEYS> &keys,
	                                          int32_t rows, ptrdiff_t delta) const
	{
		copy<true>(tile, keys.place(row_bytes), keys.begin - keys.key, rows, delta);
	}
};

template <int KEYS, int D, int THREADS> struct fa_sm80_paged_k {
	struct fa_sm80_paged_keys<KEYS> keys;
	struct fa_sm80_paged_loader<KEYS, D, THREADS> loader;

	__device__ __forceinline__ void retreat(void)
	{
		keys.retreat();
	}

	__device__ __forceinline__ void load(uint32_t tile) const
	{
		loader.copy_tile(tile, keys, 0);
	}

	__device__ __forceinline__ void load_part(uint32_t tile, int32_t rows) const
	{
		loader.copy_part(tile, keys, rows, 0);
	}

	/* Pages are aligned, whatever q and out are. */
	__device__ __forceinline__ void load_elements(uint32_t tile, int32_t rows) const
	{
		load_part(tile, rows);
	}
};

/* Follows the keys that K's loader advances. */
template <int KEYS, int D, int THREADS> struct fa_sm80_paged_v {
	const struct fa_sm80_paged_keys<KEYS> &keys;
	struct fa_sm80_paged_loader<KEYS, D, THREADS> loader;

	__device__ __forceinline__ void retreat(void)
	{
	}

	__device__ __forceinline__ void load(uint32_t tile) const
	{
		loader.copy_tile(tile, keys, 0);
	}

	__device__ __forceinline__ void load_part(uint32_t tile, int32_t rows) const
	{
		loader.copy_part(tile, keys, rows, 0);
	}

	__device__ __forceinline__ void load_elements(uint32_t tile, int32_t rows) const
	{
		load_part(tile, rows);
	}
};

/* V with rows as long as K's: a thread copies the same chunks as of K, at another address. Columns
 * past V's width then hold anything; O there is not stored. */
template <int KEYS, int D, int THREADS> struct fa_sm80_paged_v_alike {
	const struct fa_sm80_paged_k<KEYS, D, THREADS> &k;
	const struct fa_cuda_pages &pages;

	__device__ __forceinline__ void retreat(void)
	{
	}

	__device__ __forceinline__ void load(uint32_t tile) const
	{
		k.loader.copy_tile(tile, k.keys, pages.v - pages.k);
	}

	__device__ __forceinline__ void load_part(uint32_t tile, int32_t rows) const
	{
		k.loader.copy_part(tile, k.keys, rows, pages.v - pages.k);
	}

	__device__ __forceinline__ void load_elements(uint32_t tile, int32_t rows) const
	{
		load_part(tile, rows);
	}
};

struct fa_sm80_paged_token_rows {
	const struct fa_cuda_pages &pages;
	const char *head; /* slot 0's */
	uint32_t row_bytes, table_start;
	int32_t key, begin, end;

	__device__ __forceinline__ bool has(int32_t row) const
	{
		return key + row >= begin && key + row < end;
	}

	__device__ __forceinline__ const char *at(int32_t row) const
	{
		const uint32_t token = key + row;
		const uint32_t page = (uint32_t)(token / 16 * pages.page_magic >> 32);
		const uint64_t slot = pages.table[table_start + page];

		return head + slot * 256 + (token - page * pages.page_strips * 16) * row_bytes;
	}
};

struct fa_sm80_pages {
	using ARGS = struct fa_cuda_paged_attention;
	using WORK = struct fa_sm80_paged_work;
	static constexpr bool STARTS = true;

	static __device__ __forceinline__ const struct fa_cuda_attention &
	attention(const ARGS &args)
	{
		return args.attention;
	}

	static __device__ __forceinline__ WORK work(const ARGS &args, int32_t)
	{
		const uint32_t index = fa_block_index();
		const uint32_t width = args.attention.heads * args.slices, part = index % width;
		const struct fa_cuda_paged_block block = args.blocks[index / width];
		const uint4 *words = (const uint4 *)(args.items + block.item);
		const uint4 b = words[1], c = words[2];
		WORK work;

		work.sequence = 0;
		work.head = part % args.attention.heads;
		work.slice = part / args.attention.heads;
		work.row = __shfl_sync(~0u, block.row, 0);
		work.first_q = __shfl_sync(~0u, b.x, 0);
		work.n_q = __shfl_sync(~0u, b.y, 0);
		work.n_k = __shfl_sync(~0u, b.z, 0);
		work.first = __shfl_sync(~0u, c.x, 0);
		work.table_start = __shfl_sync(~0u, c.y, 0);
		work.diagonal = work.n_k - work.n_q;
		return work;
	}

	static __device__ __forceinline__ int32_t start(const WORK &work)
	{
		return work.first;
	}

	template <class K> static __device__ __forceinline__ int32_t hidden(const K &k)
	{
		return k.keys.begin - k.keys.key;
	}

	static __device__ __forceinline__ uint64_t k_offset(const ARGS &args, const WORK &work)
	{
		return (uint64_t)(work.head / args.attention.group) * args.pages.page_strips * 16 *
		       args.pages.k_row;
	}

	template <class C>
	static __device__ __forceinline__ uint64_t v_offset(const ARGS &args, const WORK &work)
	{
		return (uint64_t)(work.head / args.attention.group) * args.pages.page_strips * 16 *
		               args.pages.v_row +
		       work.slice * C::DIM_V * 2;
	}

	template <class C>
	static __device__ __forceinline__ struct fa_sm80_paged_token_rows
	k_rows(const ARGS &args, const WORK &work, int32_t key)
	{
		return { args.pages,
			 args.pages.k + k_offset(args, work),
			 args.pages.k_row,
			 work.table_start,
			 key,
			 work.first,
			 work.n_k };
	}

	template <class C>
	static __device__ __forceinline__ struct fa_sm80_paged_token_rows
	v_rows(const ARGS &args, const WORK &work, int32_t key)
	{
		return { args.pages,
			 args.pages.v + v_offset<C>(args, work),
			 args.pages.v_row,
			 work.table_start,
			 key,
			 work.first,
			 work.n_k };
	}

	template <class C>
	static __device__ __forceinline__ struct fa_sm80_paged_k<C::KEYS, C::DIM, C::THREADS>
	k(const ARGS &args, const WORK &work, int32_t key) {
		return { { args.pages, work, key },
			 { args.pages.k, k_offset(args, work), args.pages.k_row,
			   args.attention.head_dim } };
	}

	template <class C, class K>
	static __device__ __forceinline__ auto v(const ARGS &args, const WORK &work, int32_t,
	                                         const K &k)
	{
		if constexpr (C::LOGITS::any_alignment)
			return fa_sm80_paged_v<C::KEYS, C::DIM_V, C::THREADS>{
				k.keys,
				{ args.pages.v, v_offset<C>(args, work), args.pages.v_row,
				  args.attention.head_dim_v - work.slice * C::DIM_V }
			};
		else
			return fa_sm80_paged_v_alike<C::KEYS, C::DIM_V, C::THREADS>{ k,
				                                                     args.pages };
	}
};
