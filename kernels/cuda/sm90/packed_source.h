/*
 * Sources (dense_source.h) whose rows are packed: a group's 64 rows are pack_tokens new tokens of
 * 64 / pack_tokens query heads of a KV head, row h * pack_tokens + t token t of head h.
 *
 * A thread block computes a unit: a block of such rows over some tiles of keys; over pages and
 * ragged tensors the host lists them (struct fa_cuda_paged_unit). The parts of a block of rows are
 * joined in the order of keys: together if all units run at once (packed_share.h), else by the last
 * warp to arrive.
 *
 * Sources with SUFFIXES compute sequences that share a prefix, whose rows follow one another, as
 * one item over it. A unit over one sequence's other keys computes the whole block's rows, and then
 * forgets those of other sequences.
 */
#pragma once

#include "kernels/cuda/common/arrive.h"
#include "kernels/cuda/common/packed-args.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm90/dense_source.h"
#include "kernels/cuda/sm90/paged_source.h"
#include "kernels/cuda/sm90/softmax.h"
#include "kernels/cuda/sm90/yield.h"

#include <float.h>
#include <stddef.h>
#include <stdint.h>

/* Over tensors the fields first and table_start are unused, over pages first_k. */
struct fa_sm90_packed_work : fa_sm90_page_work {
	int32_t set;         /* number of the warp's set of heads within the KV head */
	int32_t last, count; /* tiles of keys */
	int32_t origin;      /* position of the group's first token */
};

/* A thread block has the unit of its number. */
struct fa_sm90_packed_block {
};

__device__ __forceinline__ uint32_t fa_sm90_warp_row(void)
{
	return threadIdx.x % 128 / 32 * 16;
}

/* A thread's first row in tokens, from its group's first row on. */
template <class C>
__device__ __forceinline__ int32_t fa_sm90_thread_row(const typename C::ARGS &all)
{
	if constexpr (C::PACKED) {
		/* Saves a register. */
		uint32_t row = (threadIdx.x + fa_opaque_zero()) % 128 / 32 * 16;

		row &= (1u << all.pack_shift) - 1;
		return (int32_t)(row + threadIdx.x % 32 / 4);
	} else {
		return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
	}
}

/* Returns 16 bytes of a unit, or of an item. A block over a client's own pages has planned its one
 * unit, in shared memory. */
template <class C>
__device__ __forceinline__ uint4 fa_sm90_packed_unit(const typename C::ARGS &all, uint32_t unit,
                                                     uint32_t at)
{
	if constexpr (C::SOURCE::PLANS)
		return fa_ld_shared_v4(fa_own_plan_address(all) +
		                       offsetof(struct fa_cuda_own_packed_plan, unit) + at * 16);
	else
		return ((const uint4 *)(all.units + unit))[at];
}

template <class C>
__device__ __forceinline__ uint4 fa_sm90_packed_item(const typename C::ARGS &all, uint32_t item,
                                                     uint32_t at)
{
	if constexpr (C::SOURCE::PLANS)
		return fa_ld_shared_v4(fa_own_plan_address(all) +
		                       offsetof(struct fa_cuda_own_packed_plan, item) + at * 16);
	else
		return ((const uint4 *)(all.items + item))[at];
}

template <class C>
__device__ __forceinline__ void fa_sm90_packed_load_listed(const typename C::ARGS &all,
                                                           uint32_t unit,
                                                           struct fa_sm90_packed_work &ret_work)
{
	const uint4 a = fa_sm90_packed_unit<C>(all, unit, 0),
		    b = fa_sm90_packed_unit<C>(all, unit, 1);
	const uint32_t item = __shfl_sync(~0u, a.x, 0);
	const uint4 c = fa_sm90_packed_item<C>(all, item, 1),
		    d = fa_sm90_packed_item<C>(all, item, 2);

	/* Tells the compiler that these are uniform. */
	ret_work.sequence = 0;
	ret_work.slice = 0;
	ret_work.head = __shfl_sync(~0u, a.y, 0);
	ret_work.row = __shfl_sync(~0u, a.z, 0);
	ret_work.last = __shfl_sync(~0u, a.w, 0);
	ret_work.count = __shfl_sync(~0u, b.x, 0);
	ret_work.set = __shfl_sync(~0u, b.y, 0) >> FA_CUDA_PAGED_UNIT_SET_SHIFT;
	ret_work.first_q = __shfl_sync(~0u, c.x, 0);
	ret_work.n_q = __shfl_sync(~0u, c.y, 0);
	ret_work.n_k = __shfl_sync(~0u, c.z, 0);
	ret_work.first = __shfl_sync(~0u, d.x, 0);
	ret_work.table_start = __shfl_sync(~0u, d.y, 0);
	ret_work.first_k = C::PAGED ? 0 : ret_work.table_start;
	if constexpr (C::SOURCE::SUFFIXES)
		ret_work.diagonal = __shfl_sync(~0u, fa_sm90_packed_item<C>(all, item, 0).x, 0);
	else
		ret_work.diagonal = ret_work.n_k - ret_work.n_q;
}

template <class C>
__device__ __forceinline__ void fa_sm90_packed_load(const struct fa_cuda_paged_attention &all,
                                                    uint32_t unit,
                                                    struct fa_sm90_packed_work &ret_work)
{
	fa_sm90_packed_load_listed<C>(all, unit, ret_work);
}

/* Divides the tiles that a block of rows sees evenly over its parts. */
template <class C>
__device__ __forceinline__ void fa_sm90_packed_load(const struct fa_cuda_packed_attention &all,
                                                    uint32_t unit,
                                                    struct fa_sm90_packed_work &ret_work)
{
	if constexpr (C::SOURCE::LISTED) {
		fa_sm90_packed_load_listed<C>(all, unit, ret_work);
		return;
	}

	const struct fa_cuda_attention &args = all.attention;
	const uint32_t rest = unit / all.blocks, block = unit - rest * all.blocks;
	const uint32_t above = rest / all.parts, part = rest - above * all.parts;
	const uint32_t sequence = above / all.kv_heads, kv_head = above - sequence * all.kv_heads;
	const uint32_t group = block * C::GROUPS, sets = (uint32_t)all.pack_sets;
	const uint32_t set = group % sets;
	const int32_t row = (int32_t)(group / sets << all.pack_shift);
	const int32_t end_row = (int32_t)(((group + C::GROUPS - 1) / sets + 1) << all.pack_shift);
	const int32_t diagonal = args.seqlen_k - args.seqlen_q;
	const int32_t begin = max(0, row + diagonal - args.window_left);
	const int32_t end = min(args.seqlen_k,
	                        min(end_row, args.seqlen_q) + diagonal + args.window_right);
	const uint32_t first = (uint32_t)begin / C::KEYS;
	const uint32_t count = (uint32_t)(end - 1) / C::KEYS - first + 1;
	const uint32_t from = count * part / all.parts, to = count * (part + 1) / all.parts;

	ret_work.sequence = (int32_t)sequence;
	ret_work.slice = 0;
	ret_work.first_q = ret_work.first_k = 0;
	ret_work.head = (int32_t)(kv_head * (uint32_t)args.group + (set << 6 >> all.pack_shift));
	ret_work.row = row;
	ret_work.last = (int32_t)(first + to - 1);
	ret_work.count = (int32_t)(to - from);
	ret_work.set = (int32_t)set;
	ret_work.n_q = args.seqlen_q;
	ret_work.n_k = args.seqlen_k;
	ret_work.first = 0;
	ret_work.diagonal = diagonal;
}

template <class C> struct fa_sm90_packed_scheduler {
	uint32_t at;
	static constexpr bool reversed = false;

	__device__ __forceinline__ fa_sm90_packed_scheduler(const typename C::ARGS &)
	{
		at = fa_sm90_block_index<C>();
	}

	__device__ __forceinline__ bool next(const typename C::ARGS &all,
	                                     struct fa_sm90_packed_block &,
	                                     struct fa_sm90_packed_work &ret_work)
	{
		if (at >= all.n_units)
			return false;
		fa_sm90_packed_load<C>(all, at, ret_work);
		at += fa_sm90_blocks<C>(all.attention);
		/* A client's own pages may have fewer units than blocks. */
		return !C::SOURCE::PLANS || ret_work.count > 0;
	}
};

/* Both sources have this. */
template <class ARGS_> struct fa_sm90_packed_rows {
	using ARGS = ARGS_;
	using WORK = struct fa_sm90_packed_work;
	using BLOCK = struct fa_sm90_packed_block;
	template <class C> using SCHEDULER = struct fa_sm90_packed_scheduler<C>;
	template <class C> using PRODUCER_SCHEDULER = struct fa_sm90_packed_scheduler<C>;
	static constexpr bool PACKED = true;

	static __device__ __forceinline__ const struct fa_cuda_attention &attention(const ARGS &all)
	{
		return all.attention;
	}

	static __device__ __forceinline__ int32_t origin(const WORK &work)
	{
		return work.origin;
	}

	/* Moves @head and @row from a block's first group to @group: heads advance first, then
	 * tokens. */
	static __device__ __forceinline__ void place(const ARGS &all, uint32_t group, int32_t set,
	                                             int32_t &head, int32_t &row)
	{
#pragma unroll 1
		for (; group > 0; group--) {
			head += 64 >> all.pack_shift;
			if (++set == all.pack_sets) {
				set = 0;
				head -= all.attention.group;
				row += 1 << all.pack_shift;
			}
		}
	}

	static __device__ __forceinline__ void keep(const ARGS &, BLOCK &, const WORK &, int32_t)
	{
	}

	/* Changes a group's WORK to the calling warp's: its head, and a row such that the warp's
	 * rows begin at row + fa_sm90_warp_row(). */
	static __device__ __forceinline__ void of_warp(const ARGS &all, struct fa_work &work)
	{
		const uint32_t row = fa_sm90_warp_row();

		work.head += (int32_t)(row >> all.pack_shift);
		work.row -= (int32_t)(row >> all.pack_shift << all.pack_shift);
	}

	template <class C>
	static __device__ __forceinline__ WORK find_unit(const ARGS &all, uint32_t at,
	                                                 uint32_t group)
	{
		WORK work;

		fa_sm90_packed_load<C>(all, at, work);
		place(all, group, work.set, work.head, work.row);
		work.origin = work.row + work.diagonal;
		of_warp(all, work);
		return work;
	}

	/* Computed again, as registers are few while O is stored. */
	template <class C>
	static __device__ __forceinline__ struct fa_work work_of(const ARGS &all, const BLOCK &,
	                                                         uint32_t group)
	{
		return find_unit<C>(all, fa_sm90_block_index<C>(), group);
	}

	template <class C>
	static __device__ __forceinline__ WORK find(const ARGS &all, const BLOCK &, uint32_t group)
	{
		return find_unit<C>(all, fa_sm90_block_index<C>(), group);
	}
};

struct fa_sm90_packed : fa_sm90_packed_rows<struct fa_cuda_paged_attention> {
	template <class C> using TILE = struct fa_sm90_page_tile<C>;
	static constexpr bool PAGED = true, OWN = false, PLANS = false, SUFFIXES = true;

	static constexpr bool BAND_SINKS(int dim, int keys)
	{
		return FA_SM90_PAGED_BAND_SINKS(dim);
	}

	static __device__ __forceinline__ uint32_t loaders(const ARGS &all)
	{
		return all.loaders;
	}

	static __device__ __forceinline__ int32_t first_key(const WORK &work)
	{
		return work.first;
	}

	static __device__ __forceinline__ bool tails(const ARGS &)
	{
		return true;
	}

	static __device__ __forceinline__ const char *k_row(const ARGS &all, const WORK &work,
	                                                    int32_t key)
	{
		return fa_sm90_pages::row_at(all, work, key, all.pages.k, all.pages.k_row);
	}

	static __device__ __forceinline__ const char *v_row(const ARGS &all, const WORK &work,
	                                                    int32_t key)
	{
		return fa_sm90_pages::row_at(all, work, key, all.pages.v, all.pages.v_row);
	}
};

/* fa_sm90_dense_tile, from the arguments of packed rows. */
template <class C> struct fa_sm90_packed_dense_tile : fa_sm90_dense_tile<C> {
	using DENSE = fa_sm90_dense_tile<C>;

	__device__ __forceinline__ void begin(const struct fa_cuda_packed_attention &all,
	                                      const struct fa_work &work, int32_t tile,
	                                      int32_t next)
	{
		DENSE::begin(all.attention, work, tile, next);
	}

	__device__ __forceinline__ void retreat(const struct fa_cuda_packed_attention &all,
	                                        int32_t keys)
	{
		DENSE::retreat(all.attention, keys);
	}

	template <int COLUMNS>
	__device__ __forceinline__ void fetch(const struct fa_cuda_packed_attention &all,
	                                      uint32_t shared, const void *map, uint32_t barrier,
	                                      int32_t first_column, uint64_t policy) const
	{
		DENSE::template fetch<COLUMNS>(all.attention, shared, map, barrier, first_column,
		                               policy);
	}
};

template <bool RAGGED>
struct fa_sm90_packed_tensors : fa_sm90_packed_rows<struct fa_cuda_packed_attention> {
	template <class C> using TILE = struct fa_sm90_packed_dense_tile<C>;
	static constexpr bool PAGED = false, PLANS = false, SUFFIXES = false, LISTED = RAGGED;

	static constexpr bool BAND_SINKS(int dim, int keys)
	{
		return FA_SM90_BAND_SINKS(dim, keys);
	}

	static __device__ __forceinline__ uint32_t loaders(const ARGS &)
	{
		return 1;
	}

	static __device__ __forceinline__ int32_t first_key(const WORK &)
	{
		return 0;
	}

	/* TMA fills rows past a tensor's end with zeros. */
	static __device__ __forceinline__ bool tails(const ARGS &)
	{
		return RAGGED;
	}

	static __device__ __forceinline__ const char *k_row(const ARGS &all, const WORK &work,
	                                                    int32_t key)
	{
		return fa_sm90_dense::k_row(all.attention, work, key);
	}

	static __device__ __forceinline__ const char *v_row(const ARGS &all, const WORK &work,
	                                                    int32_t key)
	{
		return fa_sm90_dense::v_row(all.attention, work, key);
	}
};

using fa_sm90_packed_dense = fa_sm90_packed_tensors<false>;
using fa_sm90_packed_ragged = fa_sm90_packed_tensors<true>;

/* A unit's number among those of its block of rows, and the counter of a warp's rows. */
struct fa_sm90_unit_parts {
	uint32_t part, parts, partial;
	uint64_t *counter;
};

template <class C>
__device__ __forceinline__ uint64_t *fa_sm90_unit_counter(const typename C::ARGS &all,
                                                          uint32_t block, uint32_t group)
{
	return all.unit_counters + (block * C::GROUPS + group) * 4 + threadIdx.x % 128 / 32;
}

/* Returns the parts of a listed unit. */
template <class C>
__device__ __forceinline__ struct fa_sm90_unit_parts
fa_sm90_unit_parts_listed(const typename C::ARGS &all, uint32_t unit, uint32_t group)
{
	const uint4 words = fa_sm90_packed_unit<C>(all, unit, 1);

	return { words.y % FA_CUDA_PAGED_UNIT_PARTS,
		 words.y / FA_CUDA_PAGED_UNIT_PARTS % FA_CUDA_PAGED_UNIT_PARTS, words.z,
		 fa_sm90_unit_counter<C>(all, words.w, group) };
}

template <class C>
__device__ __forceinline__ struct fa_sm90_unit_parts
fa_sm90_unit_parts_of(const struct fa_cuda_paged_attention &all, uint32_t unit, uint32_t group)
{
	return fa_sm90_unit_parts_listed<C>(all, unit, group);
}

template <class C>
__device__ __forceinline__ struct fa_sm90_unit_parts
fa_sm90_unit_parts_of(const struct fa_cuda_packed_attention &all, uint32_t unit, uint32_t group)
{
	if constexpr (C::SOURCE::LISTED)
		return fa_sm90_unit_parts_listed<C>(all, unit, group);

	const uint32_t rest = unit / all.blocks, above = rest / all.parts;
	const uint32_t block = above * all.blocks + unit - rest * all.blocks;

	return { rest - above * all.parts, all.parts, block * all.parts,
		 fa_sm90_unit_counter<C>(all, block * FA_CUDA_PACKED_COUNTERS(all.parts), group) };
}

/* Returns what the block's unit needs of its item, as 16 bytes. */
template <class C>
__device__ __forceinline__ uint4 fa_sm90_packed_item_of_block(const typename C::ARGS &all)
{
	const uint32_t item = fa_sm90_packed_unit<C>(all, fa_sm90_block_index<C>(), 0).x;

	return fa_sm90_packed_item<C>(all, item, 0);
}

/* Clears rows that do not see the keys of the block's item. */
template <class C>
__device__ __forceinline__ void
fa_sm90_packed_forget(fa_sm90_out_rows<C> &out, struct fa_sm90_sums &sums,
                      const typename C::ARGS &all, const struct fa_work &work)
{
	const uint4 item = fa_sm90_packed_item_of_block<C>(all);
	const uint32_t first = (uint32_t)work.row + fa_sm90_warp_row() + threadIdx.x % 32 / 4;

#pragma unroll
	for (int r = 0; r < 2; r++) {
		if (first + r * 8 >= item.y && first + r * 8 < item.z)
			continue;
		sums.sum[r] = 0;
		sums.offset[r] = FLT_MAX;
#pragma unroll
		for (int j = 0; j < C::DIM_V / 8; j++)
			out[j * 4 + r * 2] = out[j * 4 + r * 2 + 1] = 0;
	}
}

/* Changes @work to all keys of the sequence of row @row. */
template <class C>
__device__ __forceinline__ void fa_sm90_packed_work_of_row(const typename C::ARGS &all,
                                                           uint32_t row,
                                                           struct fa_sm90_packed_work &work)
{
	uint32_t at = fa_sm90_packed_item_of_block<C>(all).w;
	uint4 a, b, c;

	if (at == FA_CUDA_PACKED_ALONE)
		return;
	work.first = (int32_t)fa_sm90_packed_item<C>(all, at - 1, 2).x;
	/* The items divide all rows. */
	for (a = fa_sm90_packed_item<C>(all, at, 0); row >= a.z;)
		a = fa_sm90_packed_item<C>(all, ++at, 0);
	b = fa_sm90_packed_item<C>(all, at, 1);
	c = fa_sm90_packed_item<C>(all, at, 2);
	work.diagonal = (int32_t)a.x;
	work.n_k = (int32_t)b.z;
	work.table_start = c.y;
}

/* Set in the counter of rows that are joined, with the number of the part that joined them. */
#define FA_SM90_UNIT_JOINED 0x8000u
static_assert(FA_CUDA_PAGED_UNIT_PARTS <= FA_SM90_UNIT_JOINED, "a part's number fits");

/* Returns true if this unit's warp stored its rows of O. */
template <class C>
__device__ __forceinline__ bool fa_sm90_unit_joined(const typename C::ARGS &all, uint32_t unit,
                                                    uint32_t group)
{
	const struct fa_sm90_unit_parts of = fa_sm90_unit_parts_of<C>(all, unit, group);

	return of.parts == 1 || fa_ld_relaxed_device(of.counter) ==
	                                (all.epoch << 16 | FA_SM90_UNIT_JOINED | of.part);
}

/* Sets @out and @sums to the join of @n parts of the warp's rows, @step parts apart. @base: the
 * thread's place in the first. */
template <class C>
__device__ __forceinline__ void fa_sm90_unit_add_up(fa_sm90_out_rows<C> &out,
                                                    struct fa_sm90_sums &sums, const float4 *base,
                                                    uint32_t n, uint32_t step)
{
	using STATE = fa_sm90_state<C>;
	/* Loads in flight. */
	constexpr uint32_t chunks = STATE::CHUNKS - 1, at_once = C::DIM_V > 128 ? 8 : chunks;
	constexpr uint32_t shares_at_once = C::DIM_V > 128 ? 4 : 8;
	const uint64_t stride = (uint64_t)step * (STATE::BYTES / sizeof(float4));
	float lower[2] = { FLT_MAX, FLT_MAX };

	base += chunks * STATE::THREADS;
#pragma unroll 1
	for (uint32_t first = 0; first < n; first += shares_at_once) {
		float2 offsets[shares_at_once];

#pragma unroll
		for (uint32_t i = 0; i < shares_at_once; i++)
			offsets[i] = __ldcg(
				(const float2 *)(base + min(first + i, n - 1) * stride));
#pragma unroll
		for (uint32_t i = 0; i < shares_at_once; i++) {
			lower[0] = fminf(lower[0], offsets[i].x);
			lower[1] = fminf(lower[1], offsets[i].y);
		}
	}
	sums.sum[0] = sums.sum[1] = 0;
	sums.offset[0] = lower[0];
	sums.offset[1] = lower[1];
#pragma unroll
	for (uint32_t i = 0; i < chunks * 4; i++)
		out[i] = 0;
#pragma unroll 1
	for (uint32_t part = 0; part < n; part++) {
		const float4 share = __ldcg(base);
		const float weight[2] = { fa_ex2(lower[0] - share.x), fa_ex2(lower[1] - share.y) };

		sums.sum[0] = fmaf(weight[0], share.z, sums.sum[0]);
		sums.sum[1] = fmaf(weight[1], share.w, sums.sum[1]);
#pragma unroll
		for (uint32_t first = 0; first < chunks; first += at_once) {
			float4 chunk[at_once];

#pragma unroll
			for (uint32_t i = 0; i < at_once; i++)
				chunk[i] = __ldcg(base - (chunks - first - i) * STATE::THREADS);
#pragma unroll
			for (uint32_t i = 0; i < at_once; i++) {
				float *const to = &out[(first + i) * 4];

				to[0] = fmaf(weight[0], chunk[i].x, to[0]);
				to[1] = fmaf(weight[0], chunk[i].y, to[1]);
				to[2] = fmaf(weight[1], chunk[i].z, to[2]);
				to[3] = fmaf(weight[1], chunk[i].w, to[3]);
			}
		}
		base += stride;
	}
}

/* Stores @out and @sums as a part, and counts it. Returns true if it is the last of @n. */
template <class C>
__device__ __forceinline__ bool
fa_sm90_unit_hand_over(const fa_sm90_out_rows<C> &out, const struct fa_sm90_sums &sums, float4 *to,
                       uint64_t *counter, uint64_t epoch, uint32_t n)
{
	uint32_t last = 0;

	fa_sm90_store_state<C>(to, out, sums);
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		last = fa_arrive(counter, epoch, n);
	last = __shfl_sync(~0u, last, 0);
	__syncwarp();
	return last;
}

/*
 * Joins the unit's rows of a warp with the other units', if the warp is the last to arrive: then
 * @out and @sums are of all keys, and it returns true. Many parts are first joined in runs of
 * FA_CUDA_PACKED_RUN, each by its last warp.
 */
template <class C>
__device__ __forceinline__ bool
fa_sm90_unit_join(fa_sm90_out_rows<C> &out, struct fa_sm90_sums &sums, const typename C::ARGS &all,
                  const struct fa_sm90_unit_parts &of)
{
	using STATE = fa_sm90_state<C>;
	/* First joins the run of this part, then the runs. */
	uint32_t part = of.part, parts = of.parts, step = 1;

#pragma unroll 1
	for (;;) {
		const bool runs = parts > FA_CUDA_PACKED_RUN && step == 1;
		const uint32_t run = runs ? part / FA_CUDA_PACKED_RUN : 0;
		const uint32_t first = run * FA_CUDA_PACKED_RUN;
		const uint32_t n = runs ? min(parts - first, FA_CUDA_PACKED_RUN) : parts;
		float4 *const base = (float4 *)((char *)all.unit_partials +
		                                (uint64_t)(of.partial + first) * STATE::BYTES) +
		                     (threadIdx.x + fa_opaque_zero() - 128);

		/* A run's result replaces its first part, of which only this thread reads this
		 * share. */
		if (!fa_sm90_unit_hand_over<C>(
			    out, sums,
			    base + (part - first) * step * (STATE::BYTES / sizeof(float4)),
			    of.counter + (runs ? (run + 1) * C::GROUPS * 4 : 0), all.epoch, n))
			return false;
		fa_sm90_unit_add_up<C>(out, sums, base, n, step);
		if (!runs)
			break;
		parts = (parts + FA_CUDA_PACKED_RUN - 1) / FA_CUDA_PACKED_RUN;
		part = run;
		step = FA_CUDA_PACKED_RUN;
	}
	/* Marks the counter for recompute.h. No other warp counts there any more. */
	if (threadIdx.x % 32 == 0)
		fa_atomic_max(of.counter, all.epoch << 16 | FA_SM90_UNIT_JOINED | of.part);
	__syncwarp();
	return true;
}
