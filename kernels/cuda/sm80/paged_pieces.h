/*
 * How shares become results where a part's tokens are in pieces: in units, each computed alone
 * (struct fa_cuda_paged_piece), so that what a row gets does not depend on what else a step
 * has; or in a prefix, which rows of several sequences have in common, and their tails.
 *
 * Every share has a place of its own. Those of one part lie one behind another: its units', or
 * a share of each of its blocks. Who stores a share counts itself in wherever it is wanted:
 *   a part in units, or that is no tail   at the counter of the block that has its first
 *   a tail, and each that a prefix has    at the tail's counter
 * A part in units that one block has alone needs no counter. Whoever counts last adds up: the
 * prefix's shares, then the part's own, in their order.
 */
#pragma once

#include "kernels/cuda/sm80/paged_part.h"

/* So many shares from a place on. */
struct fa_paged_places {
	uint32_t first, n;
};

/* What is added up so far, of one row and four of its columns. */
struct fa_paged_total {
	float max, sum, x, y, z, w;
};

/* The blocks that a part has, @n. @tile: its first. */
__device__ __forceinline__ uint32_t fa_paged_blocks(const struct fa_cuda_paged_attention &args,
                                                    uint32_t tile, uint32_t tiles, uint32_t &n)
{
	const uint32_t first = fa_paged_block_of(args, tile);

	n = fa_paged_last_block_of(args, tile, tiles) - first + 1;
	return first;
}

/* Where the shares of part @part of item @index are; not for one in units. */
__device__ __forceinline__ struct fa_paged_places
fa_paged_places_of(const struct fa_cuda_paged_attention &args, uint32_t index, uint32_t part)
{
	const struct fa_cuda_paged_item &item = args.items[index];
	struct fa_paged_places places;

	places.first = fa_paged_blocks(args, item.tile + part * item.tiles, item.tiles, places.n) +
	               args.pieces[index].parts + part;
	return places;
}

/* Where a prefix has the shares of its row @row. */
template <class C>
__device__ __forceinline__ struct fa_paged_places
fa_paged_prefix_places(const struct fa_cuda_paged_attention &args, uint32_t prefix, uint32_t row,
                       uint32_t kv_head, uint32_t slice)
{
	const uint32_t row_block = kv_head * args.items[prefix].row_blocks + row / C::ROWS;

	return fa_paged_places_of(args, prefix, row_block * args.slices + slice);
}

template <class C>
__device__ __forceinline__ void fa_paged_add(const struct fa_cuda_paged_attention &args,
                                             const struct fa_paged_places &places, uint32_t row,
                                             uint32_t quad, struct fa_paged_total &total)
{
	constexpr uint32_t at_once = 8;

#pragma unroll 1
	for (uint32_t i = 0; i < places.n; i += at_once) {
		float2 share[at_once];
		float4 out[at_once];
		float top = total.max;

#pragma unroll
		for (uint32_t j = 0; j < at_once; j++) {
			/* Past the last, the last once more, for nothing. */
			const uint32_t place = places.first + min(i + j, places.n - 1);
			const uint32_t at = place * args.place_rows + row;

			share[j] = __ldcg((const float2 *)&args.partial_sums[at * 2]);
			out[j] = __ldcg(
				(const float4 *)&args.partials[(size_t)at * C::DIM_V + 4 * quad]);
		}
#pragma unroll
		for (uint32_t j = 0; j < at_once; j++)
			top = fmaxf(top, share[j].x);

		const float shrink = fa_ex2(total.max - top);

		total.max = top;
		total.sum *= shrink;
		total.x *= shrink;
		total.y *= shrink;
		total.z *= shrink;
		total.w *= shrink;
#pragma unroll
		for (uint32_t j = 0; j < at_once; j++) {
			const float weight = fa_ex2(share[j].x - total.max);

			if (i + j >= places.n)
				continue;
			total.sum += weight * share[j].y;
			total.x += weight * out[j].x;
			total.y += weight * out[j].y;
			total.z += weight * out[j].z;
			total.w += weight * out[j].w;
		}
	}
}

/* Finishes a part; the thread is number @thread of @threads that do. @tail: of which row block, or
 * FA_CUDA_PAGED_NO_TAIL. */
template <class C>
__device__ __forceinline__ void
fa_paged_finish(const struct fa_cuda_paged_attention &args, const struct fa_paged_walk<true> &walk,
                const struct fa_paged_places &own, uint32_t tail, uint32_t thread, uint32_t threads)
{
	constexpr uint32_t quads = C::DIM_V / 4;
	const uint32_t rows = walk.rows(args, C::ROWS);

#pragma unroll 1
	for (uint32_t i = thread; i < rows * quads; i += threads) {
		const uint32_t row = i / quads, quad = i % quads;
		const struct fa_paged_target target = fa_paged_target_of<C>(args, walk, row);
		struct fa_paged_total total = { -FLT_MAX, 0, 0, 0, 0, 0 };

		if (tail != FA_CUDA_PAGED_NO_TAIL) {
			const uint32_t at = args.tails[tail].row + row;

			fa_paged_add<C>(args,
			                fa_paged_prefix_places<C>(args, args.tails[tail].prefix, at,
			                                          walk.kv_head(args),
			                                          walk.slice(args)),
			                at % C::ROWS, quad, total);
		}
		fa_paged_add<C>(args, own, row, quad, total);

		const float factor = fa_paged_factor(args.attention, target.head, total.max,
		                                     total.sum, quad == 0 ? target.lse : NULL);
		const uint32_t column = walk.slice(args) * C::DIM_V + 4 * quad;

		fa_paged_store<C>(args, target.out, column, total.x * factor, total.y * factor);
		fa_paged_store<C>(args, target.out, column + 2, total.z * factor, total.w * factor);
	}
}

/* Counts a share in that tail @index wants; whether it was the last. One thread, after the
 * barrier behind the share. */
template <class C>
__device__ __forceinline__ bool fa_paged_arrive_at_tail(const struct fa_cuda_paged_attention &args,
                                                        uint32_t index, uint32_t kv_head,
                                                        uint32_t slice)
{
	const struct fa_cuda_paged_tail &tail = args.tails[index];
	const uint32_t row_block = index - args.pieces[tail.item].tails;
	const uint32_t part = kv_head * args.items[tail.item].row_blocks + row_block;
	uint32_t n = fa_paged_places_of(args, tail.item, part * args.slices + slice).n;
	bool last;

#pragma unroll 1
	for (uint32_t block = tail.row / C::ROWS; block <= (tail.row + tail.rows - 1) / C::ROWS;
	     block++)
		n += fa_paged_prefix_places<C>(args, tail.prefix, block * C::ROWS, kv_head, slice)
		             .n;
	__threadfence();
	last = fa_paged_arrive(
		&args.tail_counters[((uint64_t)index * args.kv_heads + kv_head) * args.slices +
	                            slice],
		args.epoch, n);
	__threadfence();
	return last;
}

/* A prefix's share is there: all tails that have rows in it are told. @flags: C::ROWS words of
 * shared memory that nobody uses. */
template <class C>
__device__ __forceinline__ void fa_paged_merge_prefix(const struct fa_cuda_paged_attention &args,
                                                      const struct fa_paged_walk<true> &walk,
                                                      uint32_t *flags)
{
	const uint32_t begin = walk.row(args, C::ROWS), end = begin + C::ROWS;
	const uint32_t kv_head = walk.kv_head(args), slice = walk.slice(args);

	for (uint32_t i = threadIdx.x; i < C::ROWS; i += C::JOINED)
		flags[i] = FA_CUDA_PAGED_NO_TAIL;
	C::join(); /* nobody has arrived yet */
	for (uint32_t i = threadIdx.x; i < walk.piece.n_tails; i += C::JOINED) {
		const uint32_t index = walk.piece.tails + i;
		const uint32_t row = args.tails[index].row;

		if (row >= end || row + args.tails[index].rows <= begin)
			continue;
		if (fa_paged_arrive_at_tail<C>(args, index, kv_head, slice))
			flags[max(row, begin) - begin] = index;
	}
	C::join(); /* the answers are there */

	/* Some warps each: a tail takes as long as its loads wait for one another, and there may
	 * be one for each row. */
	static_assert(C::JOINED % 32 == 0, "warps join");
	constexpr uint32_t warps = C::JOINED / 32;
	uint32_t n = 0;

	for (uint32_t i = 0; i < C::ROWS; i++)
		n += flags[i] != FA_CUDA_PAGED_NO_TAIL;
	const uint32_t teams = min(max(n, 1u), warps), team_warps = warps / teams;
	const uint32_t team = threadIdx.x / 32 / team_warps;
	uint32_t next = 0;

#pragma unroll 1
	for (uint32_t i = 0; i < C::ROWS; i++) {
		const uint32_t index = flags[i];
		struct fa_paged_walk<true> tail;

		/* Warps may be left over. */
		if (index == FA_CUDA_PAGED_NO_TAIL || next++ % teams != team)
			continue;
		tail.index = args.tails[index].item;
		tail.load(args);
		tail.part = (kv_head * tail.item.row_blocks + index - tail.piece.tails) *
		                    args.slices +
		            slice;
		fa_paged_finish<C>(args, tail, fa_paged_places_of(args, tail.index, tail.part),
		                   index, threadIdx.x - team * team_warps * 32, team_warps * 32);
	}
}

/* A segment's share is there, and all have met since it was stored. All that join. */
template <class C>
__device__ __forceinline__ void fa_paged_merge_pieces(const struct fa_cuda_paged_attention &args,
                                                      const struct fa_paged_walk<true> &walk,
                                                      uint32_t *flags)
{
	const bool units = walk.piece.unit > 0;
	uint32_t tail = FA_CUDA_PAGED_NO_TAIL, n_blocks;
	const uint32_t block = fa_paged_blocks(args, walk.tile, walk.item.tiles, n_blocks);
	struct fa_paged_places own = { walk.piece.parts + walk.part + block, n_blocks };
	bool last = walk.behind == walk.item.tiles;

	if (walk.piece.n_tails > 0) {
		fa_paged_merge_prefix<C>(args, walk, flags);
		C::join(); /* everybody has read the flags */
		return;
	}
	if (units)
		own = { walk.tile, walk.item.tiles };
	if (walk.piece.tails != FA_CUDA_PAGED_NO_TAIL)
		tail = walk.piece.tails + walk.part / (uint32_t)args.slices % walk.item.row_blocks;
	if (!units || n_blocks > 1) {
		if (threadIdx.x == 0) {
			if (tail != FA_CUDA_PAGED_NO_TAIL) {
				flags[0] = fa_paged_arrive_at_tail<C>(
					args, tail, walk.kv_head(args), walk.slice(args));
			} else {
				__threadfence();
				flags[0] = fa_paged_arrive(&args.counters[block], args.epoch,
				                           own.n);
				__threadfence();
			}
		}
		C::join(); /* the answer is there */
		last = flags[0];
	}
	if (last)
		fa_paged_finish<C>(args, walk, own, tail, threadIdx.x, C::JOINED);
	C::join(); /* everybody has read it */
}
