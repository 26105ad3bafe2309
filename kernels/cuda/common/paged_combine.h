/*
 * Combines partial results for FA_CUDA_PAGED_SPLIT: of fixed splits (struct fa_cuda_paged_split),
 * whose results do not depend on the rest of the step, and of a shared prefix with its suffixes.
 *
 * Every partial result has its own slot; those of a part are contiguous, one per split or block. A
 * block counts those that it has stored:
 *   no suffix, or fixed splits   at the counter of the part's first block, once, after its last
 *   a suffix, and its prefix     at the suffix's counter
 * A part with one block needs no counter. The last to count combines: first the prefix's results,
 * then the part's own, in order. Its loads are issued together and depend on few others.
 */
#pragma once

#include "kernels/cuda/common/paged_reduce.h"

/* @n partial results, from index @first on. */
struct fa_paged_partials {
	uint32_t first, n;
};

struct fa_paged_sum {
	float max, sum, x, y, z, w;
};

/* As fa_paged_block_of(), in fewer instructions. */
__device__ __forceinline__ uint32_t fa_paged_block_of_approx(const struct fa_paged_ranges &ranges,
                                                             uint32_t tile)
{
	const uint32_t larger = ranges.extra * (ranges.each + 1);
	const bool behind = tile >= larger;
	const uint32_t from = behind ? tile - larger : tile, each = ranges.each + !behind;
	/* Rounding may be off by one block. */
	uint32_t block = (uint32_t)((float)from * fa_rcp((float)each));

	if ((int32_t)(from - block * each) < 0)
		block--;
	else if (from - block * each >= each)
		block++;
	return block + (behind ? ranges.extra : 0);
}

__device__ __forceinline__ uint32_t fa_paged_blocks(const struct fa_cuda_paged_attention &args,
                                                    const struct fa_paged_ranges &ranges,
                                                    uint32_t tile, uint32_t tiles, uint32_t &n)
{
	const uint32_t first = fa_paged_block_of_approx(ranges, tile + args.epilogue_tiles);

	n = fa_paged_block_of_approx(ranges, tile + tiles - 1) - first + 1;
	return first;
}

__device__ __forceinline__ struct fa_paged_partials
fa_paged_partials_of(const struct fa_cuda_paged_attention &args,
                     const struct fa_cuda_paged_partial_range &shares, uint32_t part)
{
	struct fa_paged_partials places;

	places.first = fa_paged_blocks(args, fa_paged_ranges_of<false>(args),
	                               shares.tile + part * shares.tiles, shares.tiles, places.n) +
	               shares.parts + part;
	return places;
}

struct fa_paged_epilogue {
	struct fa_paged_partials own;
	/* The prefix's results for the row block where the suffix's rows begin, and the next if
	 * they end there. */
	struct fa_paged_partials prefix, next;
	uint32_t prefix_row;
	uint32_t first_q, first; /* as in struct fa_cuda_paged_suffix */
	uint32_t rows, kv_head, slice;
};

template <class C>
__device__ __forceinline__ struct fa_paged_epilogue
fa_paged_epilogue_of(const struct fa_cuda_paged_attention &args, uint32_t index, uint32_t kv_head,
                     uint32_t slice)
{
	const uint4 *const words = (const uint4 *)(args.suffixes + index);
	const uint4 a = words[0], b = words[1], c = words[2];
	const struct fa_cuda_paged_partial_range own = { b.x, b.y, b.z, b.w };
	const struct fa_cuda_paged_partial_range prefix = { c.x, c.y, c.z, c.w };
	const uint32_t block = a.x / C::ROWS;
	const uint32_t part = (kv_head * prefix.row_blocks + block) * args.slices + slice;
	struct fa_paged_epilogue epilogue;

	epilogue.own = fa_paged_partials_of(args, own,
	                                    kv_head * own.row_blocks * args.slices + slice);
	epilogue.prefix = fa_paged_partials_of(args, prefix, part);
	epilogue.next = { 0, 0 };
	if ((a.x + a.y - 1) / C::ROWS > block)
		epilogue.next = fa_paged_partials_of(args, prefix, part + args.slices);
	epilogue.prefix_row = a.x % C::ROWS;
	epilogue.rows = a.y;
	epilogue.first_q = a.z;
	epilogue.first = a.w;
	epilogue.kv_head = kv_head;
	epilogue.slice = slice;
	return epilogue;
}

/* Combines partial results and stores the output. Thread @thread of @threads has four columns of
 * ITEMS rows at a time, and loads SHARES results of each at once. */
template <class C, int ITEMS, int SHARES>
__device__ __forceinline__ void fa_paged_combine(const struct fa_cuda_paged_attention &args,
                                                 const struct fa_paged_epilogue &epilogue,
                                                 uint32_t thread, uint32_t threads)
{
	constexpr uint32_t quads = C::DIM_V / 4;
	const uint32_t items = epilogue.rows * quads;
	const uint32_t most = epilogue.own.n + max(epilogue.prefix.n, epilogue.next.n);

#pragma unroll 1
	for (uint32_t begin = thread; begin < items; begin += ITEMS * threads) {
		struct fa_paged_sum total[ITEMS];

#pragma unroll
		for (int u = 0; u < ITEMS; u++)
			total[u] = { -FLT_MAX, 0, 0, 0, 0, 0 };
#pragma unroll 1
		for (uint32_t i = 0; i < most; i += SHARES) {
			float2 share[ITEMS][SHARES];
			float4 out[ITEMS][SHARES];
			uint32_t n[ITEMS];

#pragma unroll
			for (int u = 0; u < ITEMS; u++) {
				const uint32_t item = min(begin + u * threads, items - 1);
				const uint32_t row = item / quads, quad = item % quads;
				const uint32_t at = epilogue.prefix_row + row;
				const bool next = at >= C::ROWS;
				const uint32_t first = next ? epilogue.next.first
				                            : epilogue.prefix.first;
				const uint32_t before = next ? epilogue.next.n : epilogue.prefix.n;

				/* The row of result 0 in the prefix's range and in the suffix's
				 * own. */
				const uint32_t of_prefix = first * args.partial_rows + at % C::ROWS;
				const uint32_t of_own =
					(epilogue.own.first - before) * args.partial_rows + row;

				n[u] = before + epilogue.own.n;
#pragma unroll
				for (int j = 0; j < SHARES; j++) {
					const uint32_t number = min(i + j, n[u] - 1);
					const uint32_t from = number * args.partial_rows +
					                      (number < before ? of_prefix
					                                       : of_own);

					share[u][j] = __ldcg(
						(const float2 *)&args.partial_sums[from * 2]);
					out[u][j] = __ldcg(
						(const float4 *)&args
							.partials[(size_t)from * C::DIM_V +
					                          4 * quad]);
				}
			}
#pragma unroll
			for (int u = 0; u < ITEMS; u++) {
				float top = total[u].max;

#pragma unroll
				for (int j = 0; j < SHARES; j++)
					top = fmaxf(top, i + j < n[u] ? share[u][j].x : -FLT_MAX);

				const float shrink = fa_ex2(total[u].max - top);

				total[u].max = top;
				total[u].sum *= shrink;
				total[u].x *= shrink;
				total[u].y *= shrink;
				total[u].z *= shrink;
				total[u].w *= shrink;
#pragma unroll
				for (int j = 0; j < SHARES; j++) {
					const float weight = fa_ex2(share[u][j].x - top);

					if (i + j >= n[u])
						continue;
					total[u].sum += weight * share[u][j].y;
					total[u].x += weight * out[u][j].x;
					total[u].y += weight * out[u][j].y;
					total[u].z += weight * out[u][j].z;
					total[u].w += weight * out[u][j].w;
				}
			}
		}
#pragma unroll
		for (int u = 0; u < ITEMS; u++) {
			const uint32_t item = begin + u * threads, quad = item % quads;

			if (item >= items)
				continue;

			const struct fa_paged_out_row target = fa_paged_out_row_at(
				args, epilogue.first_q, epilogue.first + item / quads,
				epilogue.kv_head, epilogue.slice);
			const float factor = fa_paged_factor(args.attention, target.head,
			                                     total[u].max, total[u].sum,
			                                     quad == 0 ? target.lse : NULL);
			const uint32_t column = epilogue.slice * C::DIM_V + 4 * quad;

			fa_paged_store<C>(args, target.out, column, total[u].x, total[u].y, factor);
			fa_paged_store<C>(args, target.out, column + 2, total[u].z, total[u].w,
			                  factor);
		}
	}
}

/* Counts a result that suffix @index needs; true for the last one. One thread, after the barrier
 * behind the result, which the counter's order covers. */
__device__ __forceinline__ bool fa_arrive_at_suffix(const struct fa_cuda_paged_attention &args,
                                                    uint32_t index,
                                                    const struct fa_paged_epilogue &epilogue)
{
	return fa_arrive(
		&args.suffix_counters[((uint64_t)index * args.kv_heads + epilogue.kv_head) *
	                                      args.slices +
	                              epilogue.slice],
		args.epoch, epilogue.own.n + epilogue.prefix.n + epilogue.next.n);
}

/* Counts a stored result at the suffixes that need it, and combines complete ones. @flags: C::ROWS
 * unused words of shared memory. */
template <class C>
__device__ __forceinline__ void
fa_paged_combine_suffixes(const struct fa_cuda_paged_attention &args,
                          const fa_paged_segment_of<C> &segment, uint32_t *flags)
{
	const uint32_t kv_head = segment.kv_head(args), slice = segment.slice(args);
	const bool is_prefix = segment.split.n_suffixes > 0;
	const uint32_t begin = is_prefix ? segment.row(args, C::ROWS) : 0;
	const uint32_t end = is_prefix ? begin + C::ROWS : UINT32_MAX;
	const uint32_t first = segment.split.suffixes +
	                       (is_prefix ? 0 : segment.row(args, C::ROWS) / C::ROWS);
	const uint32_t n_suffixes = is_prefix ? segment.split.n_suffixes : 1;

	for (uint32_t i = threadIdx.x; i < C::ROWS; i += C::JOINED)
		flags[i] = FA_CUDA_PAGED_NO_SUFFIX;
	C::join(); /* none has counted yet */
#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < n_suffixes; i += C::JOINED) {
		const uint32_t row = args.suffixes[first + i].row;
		const struct fa_paged_epilogue epilogue = fa_paged_epilogue_of<C>(args, first + i,
		                                                                  kv_head, slice);

		if (row >= end || row + epilogue.rows <= begin)
			continue;
		if (fa_arrive_at_suffix(args, first + i, epilogue))
			flags[is_prefix ? max(row, begin) - begin : 0] = first + i;
	}
	C::join(); /* the answers are there */

	/* Warps per suffix, as its loads depend on one another, and each row may have a suffix. */
	static_assert(C::JOINED % 32 == 0, "warps join");
	constexpr uint32_t warps = C::JOINED / 32;
	uint32_t n = 0;

#pragma unroll 4
	for (uint32_t i = 0; i < C::ROWS; i++)
		n += flags[i] != FA_CUDA_PAGED_NO_SUFFIX;

	const uint32_t teams = min(max(n, 1u), warps), team_warps = warps / teams;
	const uint32_t team = threadIdx.x / 32 / team_warps;
	uint32_t next = 0;

#pragma unroll 1
	for (uint32_t i = 0; next < n; i++) {
		const uint32_t index = flags[i];

		if (index == FA_CUDA_PAGED_NO_SUFFIX || next++ % teams != team)
			continue;
		fa_paged_combine<C, 2, 4>(args,
		                          fa_paged_epilogue_of<C>(args, index, kv_head, slice),
		                          threadIdx.x - team * team_warps * 32, team_warps * 32);
	}
	C::join(); /* all have read the flags */
}

template <class C>
__device__ __forceinline__ void fa_paged_combine_split(const struct fa_cuda_paged_attention &args,
                                                       const fa_paged_segment_of<C> &segment,
                                                       uint32_t *flags)
{
	const bool fixed = segment.split.split_tiles > 0;
	uint32_t n_blocks;

	if (segment.split.suffixes != FA_CUDA_PAGED_NO_SUFFIX) {
		fa_paged_combine_suffixes<C>(args, segment, flags);
		return;
	}
	if (fixed && segment.behind < segment.item.tiles && segment.left > 0)
		return;

	const uint32_t block = fa_paged_blocks(args, fa_paged_ranges_of<false>(args), segment.tile,
	                                       segment.item.tiles, n_blocks);

	if (n_blocks > 1) {
		if (threadIdx.x == 0)
			flags[0] = fa_arrive(&args.counters[block], args.epoch, n_blocks);
		C::join(); /* the answer is there */
	}
	if (n_blocks == 1 || flags[0]) {
		struct fa_paged_epilogue epilogue = {
			{ 0, 0 }, { 0, 0 }, { 0, 0 }, 0, segment.item.first_q
		};

		epilogue.own = { segment.split.parts + segment.part + block, n_blocks };
		if (fixed)
			epilogue.own = { segment.tile, segment.item.tiles };
		epilogue.first = segment.row(args, C::ROWS);
		epilogue.rows = segment.rows(args, C::ROWS);
		epilogue.kv_head = segment.kv_head(args);
		epilogue.slice = segment.slice(args);
		fa_paged_combine<C, 1, 16>(args, epilogue, threadIdx.x, C::JOINED);
	}
	C::join(); /* all have read it */
}
