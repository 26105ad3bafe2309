/*
 * How shares become results where a part's tokens are in pieces: in units, each computed alone
 * (struct fa_cuda_paged_piece), so that what a row gets does not depend on what else a step
 * has; or in a prefix, which rows of several sequences have in common, and their tails.
 *
 * Every share has a place of its own. Those of one part lie one behind another: its units', or
 * a share of each of its blocks. Who stores a share counts itself in wherever it is wanted:
 *   a part in units, or that is no tail   at the counter of the block that has its first
 *   a tail, and each that a prefix has    at the tail's counter
 * Of units a block counts when it has stored all that it has of the part; a part that one block
 * has alone needs no counter. Whoever counts last adds up: the prefix's shares, then the part's
 * own, in their order.
 *
 * All of this is at the end of a launch, where nothing hides how long loads take: what is asked
 * for depends on as few others as can be, and is asked for at once.
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

/* As fa_paged_block_of(), in a few instructions: here are many of them, which are run once or
 * twice, and code comes from memory then. */
__device__ __forceinline__ uint32_t fa_paged_block_near(const struct fa_cuda_paged_attention &args,
                                                        uint32_t tile)
{
	const uint32_t larger = args.tiles_extra * (args.tiles_each + 1);
	const bool behind = tile >= larger;
	const uint32_t from = behind ? tile - larger : tile, each = args.tiles_each + !behind;
	/* Of few blocks; what is rounded makes one more, or one less. */
	uint32_t block = (uint32_t)((float)from * fa_rcp((float)each));

	if ((int32_t)(from - block * each) < 0)
		block--;
	else if (from - block * each >= each)
		block++;
	return block + (behind ? args.tiles_extra : 0);
}

/* The blocks that a part has, @n. @tile: its first. */
__device__ __forceinline__ uint32_t fa_paged_blocks(const struct fa_cuda_paged_attention &args,
                                                    uint32_t tile, uint32_t tiles, uint32_t &n)
{
	const uint32_t first = fa_paged_block_near(args, tile + args.tiles_end);

	n = fa_paged_block_near(args, tile + tiles - 1) - first + 1;
	return first;
}

__device__ __forceinline__ struct fa_paged_places
fa_paged_places_of(const struct fa_cuda_paged_attention &args,
                   const struct fa_cuda_paged_shares &shares, uint32_t part)
{
	struct fa_paged_places places;

	places.first = fa_paged_blocks(args, shares.tile + part * shares.tiles, shares.tiles,
	                               places.n) +
	               shares.parts + part;
	return places;
}

/* What is to be known to finish a part. */
struct fa_paged_ending {
	struct fa_paged_places own;
	/* Of a tail, else none: what the prefix's row block has that its rows begin in, and the one
	 * behind that if they end there. */
	struct fa_paged_places prefix, next;
	uint32_t prefix_row;     /* where in the first of these */
	uint32_t first_q, first; /* as in struct fa_cuda_paged_tail */
	uint32_t rows, kv_head, slice;
};

/* Of row block @index of tails. */
template <class C>
__device__ __forceinline__ struct fa_paged_ending
fa_paged_ending_of(const struct fa_cuda_paged_attention &args, uint32_t index, uint32_t kv_head,
                   uint32_t slice)
{
	const uint4 *const words = (const uint4 *)(args.tails + index);
	const uint4 a = words[0], b = words[1], c = words[2];
	const struct fa_cuda_paged_shares own = { b.x, b.y, b.z, b.w };
	const struct fa_cuda_paged_shares prefix = { c.x, c.y, c.z, c.w };
	const uint32_t block = a.x / C::ROWS;
	const uint32_t part = (kv_head * prefix.row_blocks + block) * args.slices + slice;
	struct fa_paged_ending ending;

	ending.own = fa_paged_places_of(args, own, kv_head * own.row_blocks * args.slices + slice);
	ending.prefix = fa_paged_places_of(args, prefix, part);
	ending.next = { 0, 0 };
	if ((a.x + a.y - 1) / C::ROWS > block)
		ending.next = fa_paged_places_of(args, prefix, part + args.slices);
	ending.prefix_row = a.x % C::ROWS;
	ending.rows = a.y;
	ending.first_q = a.z;
	ending.first = a.w;
	ending.kv_head = kv_head;
	ending.slice = slice;
	return ending;
}

/* Adds up shares and stores what is finished; the thread is number @thread of @threads that do. It
 * has four columns of ITEMS rows at a time, and asks for SHARES of each before it looks at the
 * first. */
template <class C, int ITEMS, int SHARES>
__device__ __forceinline__ void fa_paged_finish(const struct fa_cuda_paged_attention &args,
                                                const struct fa_paged_ending &ending,
                                                uint32_t thread, uint32_t threads)
{
	constexpr uint32_t quads = C::DIM_V / 4;
	const uint32_t items = ending.rows * quads;
	const uint32_t most = ending.own.n + max(ending.prefix.n, ending.next.n);

#pragma unroll 1
	for (uint32_t begin = thread; begin < items; begin += ITEMS * threads) {
		struct fa_paged_total total[ITEMS];

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
				/* Past the last, the last once more, for nothing. */
				const uint32_t item = min(begin + u * threads, items - 1);
				const uint32_t row = item / quads, quad = item % quads;
				const uint32_t at = ending.prefix_row + row;
				const bool next = at >= C::ROWS;
				const uint32_t first = next ? ending.next.first
				                            : ending.prefix.first;
				const uint32_t before = next ? ending.next.n : ending.prefix.n;

				/* Where share 0 would be, of those of the prefix and the own. */
				const uint32_t of_prefix = first * args.place_rows + at % C::ROWS;
				const uint32_t of_own =
					(ending.own.first - before) * args.place_rows + row;

				n[u] = before + ending.own.n;
#pragma unroll
				for (int j = 0; j < SHARES; j++) {
					const uint32_t number = min(i + j, n[u] - 1);
					const uint32_t from = number * args.place_rows +
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

			const struct fa_paged_target target = fa_paged_target_at(
				args, ending.first_q, ending.first + item / quads, ending.kv_head,
				ending.slice);
			const float factor = fa_paged_factor(args.attention, target.head,
			                                     total[u].max, total[u].sum,
			                                     quad == 0 ? target.lse : NULL);
			const uint32_t column = ending.slice * C::DIM_V + 4 * quad;

			fa_paged_store<C>(args, target.out, column, total[u].x * factor,
			                  total[u].y * factor);
			fa_paged_store<C>(args, target.out, column + 2, total[u].z * factor,
			                  total[u].w * factor);
		}
	}
}

/* Counts a share in that tail @index wants; whether it was the last. One thread, after the
 * barrier behind the share, which the counter's order takes in. */
__device__ __forceinline__ bool fa_paged_arrive_at_tail(const struct fa_cuda_paged_attention &args,
                                                        uint32_t index,
                                                        const struct fa_paged_ending &ending)
{
	return fa_paged_arrive(
		&args.tail_counters[((uint64_t)index * args.kv_heads + ending.kv_head) *
	                                    args.slices +
	                            ending.slice],
		args.epoch, ending.own.n + ending.prefix.n + ending.next.n);
}

/* A share is there that tails want: its own, or a prefix's all that have rows in it. @flags:
 * C::ROWS words of shared memory that nobody uses. */
template <class C>
__device__ __forceinline__ void fa_paged_merge_tails(const struct fa_cuda_paged_attention &args,
                                                     const fa_paged_walk_of<C> &walk,
                                                     uint32_t *flags)
{
	const uint32_t kv_head = walk.kv_head(args), slice = walk.slice(args);
	const bool is_prefix = walk.piece.n_tails > 0;
	const uint32_t begin = is_prefix ? walk.row(args, C::ROWS) : 0;
	const uint32_t end = is_prefix ? begin + C::ROWS : UINT32_MAX;
	const uint32_t first = walk.piece.tails +
	                       (is_prefix ? 0 : walk.row(args, C::ROWS) / C::ROWS);
	const uint32_t n_tails = is_prefix ? walk.piece.n_tails : 1;

	for (uint32_t i = threadIdx.x; i < C::ROWS; i += C::JOINED)
		flags[i] = FA_CUDA_PAGED_NO_TAIL;
	C::join(); /* nobody has arrived yet */
#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < n_tails; i += C::JOINED) {
		const uint32_t row = args.tails[first + i].row;
		const struct fa_paged_ending ending = fa_paged_ending_of<C>(args, first + i,
		                                                            kv_head, slice);

		if (row >= end || row + ending.rows <= begin)
			continue;
		if (fa_paged_arrive_at_tail(args, first + i, ending))
			flags[is_prefix ? max(row, begin) - begin : 0] = first + i;
	}
	C::join(); /* the answers are there */

	/* Some warps each: a tail takes as long as its loads wait for one another, and there may
	 * be one for each row. */
	static_assert(C::JOINED % 32 == 0, "warps join");
	constexpr uint32_t warps = C::JOINED / 32;
	uint32_t n = 0;

#pragma unroll 4
	for (uint32_t i = 0; i < C::ROWS; i++)
		n += flags[i] != FA_CUDA_PAGED_NO_TAIL;

	const uint32_t teams = min(max(n, 1u), warps), team_warps = warps / teams;
	const uint32_t team = threadIdx.x / 32 / team_warps;
	uint32_t next = 0;

#pragma unroll 1
	for (uint32_t i = 0; next < n; i++) {
		const uint32_t index = flags[i];

		/* Warps may be left over. */
		if (index == FA_CUDA_PAGED_NO_TAIL || next++ % teams != team)
			continue;
		fa_paged_finish<C, 2, 4>(args, fa_paged_ending_of<C>(args, index, kv_head, slice),
		                         threadIdx.x - team * team_warps * 32, team_warps * 32);
	}
	C::join(); /* everybody has read the flags */
}

/* A segment's share is there, and all have met since it was stored. All that join. */
template <class C>
__device__ __forceinline__ void fa_paged_merge_pieces(const struct fa_cuda_paged_attention &args,
                                                      const fa_paged_walk_of<C> &walk,
                                                      uint32_t *flags)
{
	const bool units = walk.piece.unit > 0;
	uint32_t n_blocks;

	if (walk.piece.tails != FA_CUDA_PAGED_NO_TAIL) {
		fa_paged_merge_tails<C>(args, walk, flags);
		return;
	}
	/* More units of the part are this block's. */
	if (units && walk.behind < walk.item.tiles && walk.left > 0)
		return;

	const uint32_t block = fa_paged_blocks(args, walk.tile, walk.item.tiles, n_blocks);

	if (n_blocks > 1) {
		if (threadIdx.x == 0)
			flags[0] = fa_paged_arrive(&args.counters[block], args.epoch, n_blocks);
		C::join(); /* the answer is there */
	}
	if (n_blocks == 1 || flags[0]) {
		struct fa_paged_ending ending = {
			{ 0, 0 }, { 0, 0 }, { 0, 0 }, 0, walk.item.first_q
		};

		ending.own = { walk.piece.parts + walk.part + block, n_blocks };
		if (units)
			ending.own = { walk.tile, walk.item.tiles };
		ending.first = walk.row(args, C::ROWS);
		ending.rows = walk.rows(args, C::ROWS);
		ending.kv_head = walk.kv_head(args);
		ending.slice = walk.slice(args);
		fa_paged_finish<C, 1, 16>(args, ending, threadIdx.x, C::JOINED);
	}
	C::join(); /* everybody has read it */
}
