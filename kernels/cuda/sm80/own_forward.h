/*
 * Source (source.h) of keys in a client's own pages, for many query rows. A lane knows the pages of
 * every 32nd key of the tile to load.
 */
#pragma once

#include "kernels/cuda/common/own.h"
#include "kernels/cuda/sm80/paged_forward.h"

#include <stdint.h>

template <int KEYS> struct fa_sm80_own_keys {
	static constexpr int each = (KEYS + 31) / 32;

	const struct fa_cuda_paged_attention &args;
	uint32_t table_start;
	int32_t key, end;
	uint32_t page[each], in_page[each];

	__device__ __forceinline__ fa_sm80_own_keys(const struct fa_cuda_paged_attention &all,
	                                            const struct fa_sm80_paged_work &work,
	                                            int32_t first_key)
	    : args(all), table_start(work.table_start), key(first_key), end(work.n_k)
	{
		look_up();
	}

	__device__ __forceinline__ void look_up(void)
	{
#pragma unroll
		for (int i = 0; i < each; i++) {
			const int32_t at = key + i * 32 + (int32_t)(fa_thread_index() % 32);

			page[i] = in_page[i] = 0;
			if (at >= 0 && at < end)
				page[i] = fa_own_page(args, table_start, at, in_page[i]);
		}
	}

	__device__ __forceinline__ void retreat(void)
	{
		key -= KEYS;
		look_up();
	}
};

template <int KEYS, int D, int THREADS, bool V> struct fa_sm80_own_loader {
	static constexpr int lanes = fa_swizzle<D>::lanes;
	static constexpr int pass = THREADS / lanes;
	static constexpr int columns = D / 8 / lanes;
	static_assert(D / 8 % lanes == 0 && KEYS % pass == 0 && 32 % pass == 0,
	              "a pass lies in 32 keys");

	const char *head; /* page 0's */
	int32_t width;

	/* Copies the tile's first @rows rows; the others become zero. */
	__device__ __forceinline__ void copy(uint32_t tile, const fa_sm80_own_keys<KEYS> &keys,
	                                     int32_t rows) const
	{
		const struct fa_cuda_own &own = fa_own_of(keys.args);
		const int32_t row = threadIdx.x / lanes, chunk = threadIdx.x % lanes;

#pragma unroll
		for (int i = 0; i < KEYS / pass; i++) {
			const uint32_t from = i * pass % 32 + row;
			const uint32_t page = __shfl_sync(~0u, keys.page[i * pass / 32], from);
			const uint32_t in_page = __shfl_sync(~0u, keys.in_page[i * pass / 32],
			                                     from);
			const char *const source = head + page * (V ? own.v_page : own.k_page) +
			                           in_page * (V ? own.v_token : own.k_token) +
			                           chunk * 16;
			const bool there = i * pass + row < rows;
			const uint32_t to = tile + fa_swizzle<D>::offset(row, chunk) +
			                    i * pass * D * 2;

#pragma unroll
			for (int c = 0; c < columns; c++) {
				const bool exists = there && (chunk + c * lanes) * 8 < width;

				if (own.aligned)
					fa_cp_async_16_zfill(to + c * lanes * 16,
					                     source + c * lanes * 16,
					                     exists ? 16 : 0);
				else
					fa_st_shared_v4(to + c * lanes * 16,
					                exists ? fa_own_load_elements<2>(
									 source + c * lanes * 16)
					                       : make_uint4(0, 0, 0, 0));
			}
		}
	}
};

template <int KEYS, int D, int THREADS> struct fa_sm80_own_k {
	struct fa_sm80_own_keys<KEYS> keys;
	struct fa_sm80_own_loader<KEYS, D, THREADS, false> loader;

	__device__ __forceinline__ void retreat(void)
	{
		keys.retreat();
	}

	__device__ __forceinline__ void load(uint32_t tile) const
	{
		loader.copy(tile, keys, KEYS);
	}

	__device__ __forceinline__ void load_part(uint32_t tile, int32_t rows) const
	{
		loader.copy(tile, keys, rows);
	}

	/* K and V may be aligned otherwise than q and out. */
	__device__ __forceinline__ void load_elements(uint32_t tile, int32_t rows) const
	{
		load_part(tile, rows);
	}
};

/* As in paged_forward.h. */
template <int KEYS, int D, int THREADS> struct fa_sm80_own_v {
	const struct fa_sm80_own_keys<KEYS> &keys;
	struct fa_sm80_own_loader<KEYS, D, THREADS, true> loader;

	__device__ __forceinline__ void retreat(void)
	{
	}

	__device__ __forceinline__ void load(uint32_t tile) const
	{
		loader.copy(tile, keys, KEYS);
	}

	__device__ __forceinline__ void load_part(uint32_t tile, int32_t rows) const
	{
		loader.copy(tile, keys, rows);
	}

	__device__ __forceinline__ void load_elements(uint32_t tile, int32_t rows) const
	{
		load_part(tile, rows);
	}
};

template <bool V> struct fa_sm80_own_token_rows {
	const struct fa_cuda_paged_attention &args;
	const char *head; /* page 0's */
	uint32_t table_start;
	int32_t key, end;

	__device__ __forceinline__ bool has(int32_t row) const
	{
		return key + row < end;
	}

	__device__ __forceinline__ const char *at(int32_t row) const
	{
		const struct fa_cuda_own &own = fa_own_of(args);
		uint32_t in_page;
		const uint32_t page = fa_own_page(args, table_start, key + row, in_page);

		return head + page * (V ? own.v_page : own.k_page) +
		       in_page * (V ? own.v_token : own.k_token);
	}
};

__device__ __forceinline__ const struct fa_cuda_paged_item &
fa_sm80_own_item(const struct fa_cuda_paged_attention &args)
{
	const uint32_t width = args.attention.heads * args.slices;

	return args.items[args.blocks[fa_block_index() / width].item];
}

struct fa_sm80_own : fa_sm80_pages {
	static __device__ __forceinline__ WORK work(const ARGS &args, int32_t rows)
	{
		WORK work = fa_sm80_pages::work(args, rows);

		/* Behind the last row of a prefix is another position than behind its last key. */
		work.diagonal = (int32_t)fa_sm80_own_item(args).append - work.n_q;
		return work;
	}

	/* Read again, which saves registers. */
	template <class K> static __device__ __forceinline__ int32_t hidden(const K &k)
	{
		if (!fa_own_of(k.keys.args).starts)
			return 0;
		return (int32_t)fa_sm80_own_item(k.keys.args).first - k.keys.key;
	}

	static __device__ __forceinline__ const char *k_head(const ARGS &args, const WORK &work)
	{
		return args.pages.k + work.head / args.attention.group * fa_own_of(args).k_head;
	}

	template <class C>
	static __device__ __forceinline__ const char *v_head(const ARGS &args, const WORK &work)
	{
		return args.pages.v + work.head / args.attention.group * fa_own_of(args).v_head +
		       work.slice * C::DIM_V * 2;
	}

	template <class C>
	static __device__ __forceinline__ struct fa_sm80_own_token_rows<false>
	k_rows(const ARGS &args, const WORK &work, int32_t key) {
		return { args, k_head(args, work), work.table_start, key, work.n_k };
	}

	template <class C>
	static __device__ __forceinline__ struct fa_sm80_own_token_rows<true>
	v_rows(const ARGS &args, const WORK &work, int32_t key) {
		return { args, v_head<C>(args, work), work.table_start, key, work.n_k };
	}

	template <class C>
	static __device__ __forceinline__ struct fa_sm80_own_k<C::KEYS, C::DIM, C::THREADS>
	k(const ARGS &args, const WORK &work, int32_t key) {
		return { { args, work, key }, { k_head(args, work), args.attention.head_dim } };
	}

	template <class C, class K>
	static __device__ __forceinline__ auto v(const ARGS &args, const WORK &work, int32_t,
	                                         const K &k)
	{
		return fa_sm80_own_v<C::KEYS, C::DIM_V, C::THREADS>{
			k.keys,
			{ v_head<C>(args, work), args.attention.head_dim_v - work.slice * C::DIM_V }
		};
	}
};

__device__ __forceinline__ bool fa_sm80_own_has_rows(const struct fa_cuda_paged_attention &args)
{
	return fa_block_index() / (args.attention.heads * args.slices) <
	       (int32_t)fa_own_of(args).ranges->forward_blocks;
}
