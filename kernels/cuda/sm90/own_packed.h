/*
 * Packed rows (packed_source.h) over a client's own pages. Each block of threads plans: it reads
 * all lengths and cu_q once, divides the tiles of keys evenly over a KV head's units, and keeps its
 * own unit in shared memory.
 *
 * If the client changes its lengths meanwhile, blocks join parts that do not belong together. Yet
 * each writes rows of its unit alone, uses the launch's counters and places, and does not wait for
 * long.
 *
 * fa_thread_index() keeps what is computed here out of registers that the main loop needs.
 */
#pragma once

#include "kernels/cuda/common/own_plan.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm90/out_rows.h"
#include "kernels/cuda/sm90/packed_source.h"

#include <math.h>
#include <stdint.h>

/* Sums @value over the warp's lanes up to this one. */
__device__ __forceinline__ uint32_t fa_sm90_own_scan(uint32_t value)
{
	const uint32_t lane = fa_thread_index() % 32;

#pragma unroll
	for (uint32_t apart = 1; apart < 32; apart *= 2) {
		const uint32_t other = __shfl_sync(~0u, value, lane - apart);

		value += lane >= apart ? other : 0;
	}
	return value;
}

/* Sums @sums before this thread's warp (.x), and all (.y). */
__device__ __forceinline__ uint2 fa_sm90_own_sums(const uint32_t *sums)
{
	const uint32_t warp = fa_thread_index() / 32;
	uint2 result = { 0, 0 };

#pragma unroll
	for (uint32_t w = 0; w < FA_CUDA_OWN_PACKED_WARPS; w++) {
		result.x += w < warp ? sums[w] : 0;
		result.y += sums[w];
	}
	return result;
}

struct fa_sm90_own_rows {
	uint32_t sequence, first, count;
	uint32_t set, row; /* set and row of its first group */
};

template <class C>
__device__ __forceinline__ void fa_sm90_own_list(const struct fa_cuda_paged_attention &all,
                                                 uint32_t &ret_blocks)
{
	const struct fa_cuda_own_plan &p = fa_own_of(all).plan;
	struct fa_cuda_own_packed_plan *const plan = fa_own_packed_plan(all);
	const uint32_t thread = fa_thread_index();
	uint32_t items = 0, blocks = 0;

#pragma unroll 1
	for (uint32_t first = 0; first < (uint32_t)p.batch; first += C::THREADS) {
		const uint32_t b = first + thread;
		struct fa_cuda_paged_item item = {};
		uint32_t n = 0, groups, before, index;

		if (b < (uint32_t)p.batch)
			item = fa_own_item(p, b);
		if (item.n_q >= p.forward_from && item.n_q > 0) {
			groups = ((item.n_q - 1) >> all.pack_shift) + 1;
			n = (groups * (uint32_t)all.pack_sets + C::GROUPS - 1) / C::GROUPS;
		}
		before = fa_sm90_own_scan(n);
		const uint32_t with_rows = __ballot_sync(~0u, n > 0);

		if (thread % 32 == 31) {
			plan->sums[thread / 32] = before;
			plan->more[thread / 32] = __popc(with_rows);
		}
		__syncthreads(); /* the warps' sums are written */
		const uint2 sums = fa_sm90_own_sums(plan->sums);
		const uint2 more = fa_sm90_own_sums(plan->more);

		before += blocks + sums.x - n;
		index = items + more.x + __popc(with_rows & ((1u << thread % 32) - 1));
		/* Sequences beyond the host's bound are left out. */
		if (n > 0 && index < FA_CUDA_OWN_PACKED_ITEMS) {
			plan->sequence[index] = b;
			plan->first_q[index] = item.first_q;
			plan->n_q[index] = item.n_q;
			plan->n_k[index] = item.n_k;
			plan->blocks[index] = before;
		}
		if (n > 0 && index == FA_CUDA_OWN_PACKED_ITEMS)
			plan->unit.item = before;
		items += more.y;
		blocks += sums.y;
		__syncthreads(); /* all have read the sums; the list is written */
	}
	if (items > FA_CUDA_OWN_PACKED_ITEMS)
		blocks = plan->unit.item;
	for (uint32_t i = items + thread; i < FA_CUDA_OWN_PACKED_ITEMS; i += C::THREADS)
		plan->blocks[i] = UINT32_MAX;
	ret_blocks = min(blocks, fa_own_of(all).units);
	__syncthreads(); /* the list has an end, and the word was read */
}

template <class C>
__device__ __forceinline__ struct fa_sm90_own_rows
fa_sm90_own_rows_of(const struct fa_cuda_paged_attention &all, uint32_t block)
{
	const struct fa_cuda_own_packed_plan *const plan = fa_own_packed_plan(all);
	const struct fa_cuda_attention &args = all.attention;
	const uint32_t sets = (uint32_t)all.pack_sets;
	struct fa_sm90_own_rows rows;
	uint32_t low = 0;

	/* The last that does not begin after the block. */
#pragma unroll
	for (uint32_t step = FA_CUDA_OWN_PACKED_ITEMS / 2; step > 0; step /= 2)
		low += plan->blocks[low + step] <= block ? step : 0;
	const uint32_t group = (block - plan->blocks[low]) * C::GROUPS;
	const int32_t n_q = (int32_t)plan->n_q[low], n_k = (int32_t)plan->n_k[low];
	const int32_t end_row = (int32_t)(((group + C::GROUPS - 1) / sets + 1) << all.pack_shift);

	rows.sequence = low;
	rows.set = group % sets;
	rows.row = group / sets << all.pack_shift;
	const int32_t begin = max(0, (int32_t)rows.row + n_k - n_q - args.window_left);
	const int32_t end = min(n_k, min(end_row, n_q) + n_k - n_q + args.window_right);

	rows.first = (uint32_t)begin / C::KEYS;
	rows.count = end > begin ? (uint32_t)(end - 1) / C::KEYS - rows.first + 1 : 0;
	return rows;
}

/* Finds the least tiles per unit for which @blocks blocks of rows need no more units than there
 * are. Each warp tries one number. */
template <class C>
__device__ __forceinline__ uint32_t fa_sm90_own_most(const struct fa_cuda_paged_attention &all,
                                                     uint32_t blocks)
{
	struct fa_cuda_own_packed_plan *const plan = fa_own_packed_plan(all);
	const uint32_t units = fa_own_of(all).units;
	const uint32_t thread = fa_thread_index(), warp = thread / 32;
	const uint32_t last = FA_CUDA_OWN_PACKED_WARPS - 1;
	uint32_t tiles, longest = 0, low, high, most, parts = 0, enough = UINT32_MAX;

	tiles = fa_sm90_own_sums(plan->sums).y;
#pragma unroll
	for (uint32_t w = 0; w < FA_CUDA_OWN_PACKED_WARPS; w++)
		longest = max(longest, plan->more[w]);
	longest = max(longest, 1u);
	low = max((tiles + units - 1) / units, 1u);
	/* A block has less than one unit more than its tiles fill. */
	high = units > blocks ? min(tiles / (units - blocks) + 1, longest) : longest;
	high = max(high, low);
	most = low + (high - low) * warp / last;
#pragma unroll 1
	for (uint32_t r = thread % 32; r < blocks; r += 32)
		parts += max((plan->counts[r] + most - 1) / most, 1u);
#pragma unroll
	for (uint32_t apart = 16; apart > 0; apart /= 2)
		parts += __shfl_xor_sync(~0u, parts, apart);
	__syncthreads(); /* all have read sums and longest */
	if (thread % 32 == 0)
		plan->sums[warp] = parts <= units ? most : UINT32_MAX;
	__syncthreads(); /* every warp's number is written */
#pragma unroll
	for (uint32_t w = 0; w < FA_CUDA_OWN_PACKED_WARPS; w++)
		enough = min(enough, plan->sums[w]);
	/* If that saves less than a join costs, nothing is divided. */
	if (longest <= enough + fa_own_of(all).join_tiles)
		enough = longest;
	return enough;
}

/* Stores zeros in the rows of the block's unit, which sees no keys. */
template <class C>
__device__ __forceinline__ void fa_sm90_own_store_nothing(const struct fa_cuda_paged_attention &all)
{
	const struct fa_cuda_own_packed_plan *const plan = fa_own_packed_plan(all);
	const struct fa_cuda_attention &args = all.attention;
	constexpr uint32_t chunks = C::DIM_V / 8;

#pragma unroll 1
	for (uint32_t i = fa_thread_index(); i < C::ROWS * chunks; i += C::THREADS) {
		const uint32_t row = i / chunks % FA_SM90_GROUP_ROWS, chunk = i % chunks;
		struct fa_work work = {};

		work.head = (int32_t)plan->unit.head;
		work.row = (int32_t)plan->unit.token;
		work.first_q = plan->item.first_q;
		C::SOURCE::place(all, i / chunks / FA_SM90_GROUP_ROWS,
		                 (int32_t)(plan->unit.parts_set >> FA_CUDA_PAGED_UNIT_SET_SHIFT),
		                 work.head, work.row);
		work.head += (int32_t)(row >> all.pack_shift);
		work.row += (int32_t)(row & ((1u << all.pack_shift) - 1));
		if (work.row >= (int32_t)plan->item.n_q)
			continue;
		*(uint4 *)(fa_sm90_out_row<C>(args, work, work.row) +
		           chunk * 16) = make_uint4(0, 0, 0, 0);
		if (args.lse && chunk == 0)
			args.lse[((int64_t)work.first_q + work.row) * args.lse_stride_token +
			         work.head * args.lse_stride_head] = -INFINITY;
	}
}

struct fa_sm90_own_packed : fa_sm90_packed_rows<struct fa_cuda_paged_attention> {
	template <class C> using TILE = struct fa_sm90_page_tile<C>;
	static constexpr bool PAGED = true, OWN = true, PLANS = true, SUFFIXES = false;

	static constexpr bool BAND_SINKS(int dim, int keys)
	{
		return false;
	}

	/* All threads, after the barrier behind fa_sm90_yield_begin(). */
	template <class C> static __device__ __forceinline__ void plan(const ARGS &all)
	{
		const uint32_t thread = fa_thread_index();
		const uint32_t number = fa_sm90_block_index<C>(), units = fa_own_of(all).units;
		const uint32_t kv_head = number / units, at = number - kv_head * units;
		struct fa_cuda_own_packed_plan *const plan = fa_own_packed_plan(all);
		struct fa_sm90_own_rows rows = {};
		uint32_t blocks, count = 0, longest, most, parts = 0, before;

		static_assert(C::THREADS == FA_CUDA_OWN_PACKED_WARPS * 32, "a sum for each warp");
		static_assert(FA_CUDA_OWN_PACKED_BLOCKS <= C::THREADS,
		              "a thread for each block of rows");
		fa_own_prefetch_table(all);
		fa_sm90_own_list<C>(all, blocks);
		if (thread < blocks) {
			rows = fa_sm90_own_rows_of<C>(all, thread);
			plan->counts[thread] = rows.count;
		}
		count = longest = rows.count;
#pragma unroll
		for (uint32_t apart = 16; apart > 0; apart /= 2) {
			count += __shfl_xor_sync(~0u, count, apart);
			longest = max(longest, __shfl_xor_sync(~0u, longest, apart));
		}
		if (thread % 32 == 0) {
			plan->sums[thread / 32] = count;
			plan->more[thread / 32] = longest;
		}
		__syncthreads(); /* the blocks' tiles are written, and their sums */
		most = fa_sm90_own_most<C>(all, blocks);
		if (thread < blocks)
			parts = max((rows.count + most - 1) / most, 1u);
		before = fa_sm90_own_scan(parts);
		if (thread % 32 == 31)
			plan->more[thread / 32] = before;
		if (thread == 0) {
			plan->unit.count = 0;
			plan->item.n_q = 0;
		}
		__syncthreads(); /* the sums of parts are written, and the unit cleared */
		before += fa_sm90_own_sums(plan->more).x - parts;
		if (thread < blocks && before <= at && at < before + parts) {
			const uint32_t part = at - before;
			const uint32_t begin = rows.count * part / parts,
				       end = rows.count * (part + 1) / parts;
			const uint32_t i = rows.sequence, place = kv_head * units + before;

			plan->item.first_q = plan->first_q[i];
			plan->item.n_q = plan->n_q[i];
			plan->item.n_k = plan->n_k[i];
			plan->item.first = 0;
			plan->item.table_start = plan->sequence[i] *
			                         fa_own_of(all).plan.table_stride;
			plan->unit.head = kv_head * (uint32_t)all.attention.group +
			                  (rows.set << 6 >> all.pack_shift);
			plan->unit.token = rows.row;
			plan->unit.last = rows.first + end - 1;
			plan->unit.count = end - begin;
			plan->unit.parts_set = part + parts * FA_CUDA_PAGED_UNIT_PARTS +
			                       (rows.set << FA_CUDA_PAGED_UNIT_SET_SHIFT);
			plan->unit.partial = place;
			/* Two parts have FA_CUDA_PACKED_COUNTERS(2). */
			plan->unit.counter = place * (FA_CUDA_PACKED_COUNTERS(2) / 2);
		}
		__syncthreads(); /* the unit is written */
		if (plan->item.n_q > 0 && plan->unit.count == 0)
			fa_sm90_own_store_nothing<C>(all);
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
		return fa_sm90_own_pages::k_row(all, work, key);
	}

	static __device__ __forceinline__ const char *v_row(const ARGS &all, const WORK &work,
	                                                    int32_t key)
	{
		return fa_sm90_own_pages::v_row(all, work, key);
	}
};
