/*
 * How the shares of a part that several blocks compute become one, in decode on bulk copies that
 * is not in pieces. What takes time here is one trip to L2 and back after the other, at the end
 * of a launch, where nothing hides them. So:
 *   - who adds up is known before there is anything to add: blocks count themselves in when
 *     they have computed the part's last tile of theirs, and bring their warps' rows together
 *     while the count is under way. The last to count adds up.
 *   - a share is not announced. It replaces what says that there is nothing yet (NOTHING), 16
 *     bytes at a time, and whoever adds up looks until it has come. All whom it waits for have
 *     counted, so they run, and wait for nobody until they have stored their shares.
 *   - what earlier launches have left is hidden when a block begins, before it counts for the
 *     first time: it stores NOTHING to its places, and fences, while its first tile is on its
 *     way. Whoever counts last, and then asks L2 itself, finds no more of it. PTX's model
 *     asks for a fence behind the count's answer, too. It is left out: loads of the GPU's scope
 *     are L2's to answer, and these are asked for after the branch on the count.
 * Shares are added in the order of their blocks, whoever does it; in groups, in the order of the
 * group's, and then group by group.
 *
 * A thread asks for AT_ONCE shares at a time, and each further turn is one more trip to L2. In
 * kernels of C::LEVELS the blocks of a part with more are in G groups of AT_ONCE at most, every
 * G-th block in one. The last of a group to count adds up the group's shares, and counts for the
 * group while they come; the last of these adds up what came of the groups. A group's counter is
 * that of its second block, and its sum goes to the second of that block's two places. Nobody else
 * uses these: that block is neither the part's first nor its last. And it has hidden the place
 * before it counted, so before anybody could add up its group.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm80/paged_pieces.h"
#include "kernels/cuda/sm80/paged_walk.h"
#include "kernels/cuda/sm90/paged_kernels.h"

#include <float.h>
#include <stdint.h>

/* No number that a share begins with. */
#define FA_SM90_PAGED_NOTHING 0xffffffffu

/* Of a segment that is not all of its part, in shared memory at C::LAST. Thread 0 writes is_last,
 * the rest whoever notes it (fa_sm90_paged_begin()). */
struct fa_sm90_paged_shared {
	uint32_t first, n;  /* blocks that have shares of the part */
	uint32_t has_other; /* the first of them has had another part before */
	uint32_t is_last;   /* this one adds up; known behind the warps' coming together */
};

/* Behind it, if C::LEVELS. Thread 0 writes is_top. */
struct fa_sm90_paged_grouped {
	struct fa_sm90_paged_shared all;
	uint32_t groups, mine; /* and which is this block's */
	uint32_t members;      /* of that */
	uint32_t is_top;       /* this one adds up the groups' */
};
static_assert(sizeof(struct fa_sm90_paged_grouped) <= 32, "there is room at C::LAST");

/* Shares of a part, or of a group's, in the order in which they are added. */
struct fa_sm90_paged_level {
	uint32_t row, step; /* the first's first row, of all places; from share to share */
	uint32_t n;
	uint32_t other; /* rows that the first is off */
};

/* All of a part's. */
template <class C>
__device__ __forceinline__ struct fa_sm90_paged_level
fa_sm90_paged_level_of(const struct fa_sm90_paged_shared &shared)
{
	return { shared.first * 2 * C::ROWS, 2u * C::ROWS, shared.n,
		 shared.has_other ? (uint32_t)C::ROWS : 0 };
}

/* Which block's counter and second place are the group's. */
__device__ __forceinline__ uint32_t
fa_sm90_paged_group_block(const struct fa_sm90_paged_grouped &shared)
{
	return shared.all.first + shared.groups + shared.mine;
}

/* Which block's counter is that of the shares that this block's is one of; how many they are. */
template <class C>
__device__ __forceinline__ uint32_t
fa_sm90_paged_counter_of(const struct fa_sm90_paged_shared &shared)
{
	if constexpr (C::LEVELS) {
		const struct fa_sm90_paged_grouped &grouped =
			(const struct fa_sm90_paged_grouped &)shared;

		if (grouped.groups > 1)
			return fa_sm90_paged_group_block(grouped);
	}
	return shared.first;
}

template <class C>
__device__ __forceinline__ uint32_t
fa_sm90_paged_sharers_of(const struct fa_sm90_paged_shared &shared)
{
	if constexpr (C::LEVELS)
		return ((const struct fa_sm90_paged_grouped &)shared).members;
	return shared.n;
}

/* Those of the block's group. */
template <class C>
__device__ __forceinline__ struct fa_sm90_paged_level
fa_sm90_paged_level_of_group(const struct fa_sm90_paged_grouped &shared)
{
	return { (shared.all.first + shared.mine) * 2 * C::ROWS, shared.groups * 2 * C::ROWS,
		 shared.members, shared.mine == 0 && shared.all.has_other ? (uint32_t)C::ROWS : 0 };
}

/* The groups'. */
template <class C>
__device__ __forceinline__ struct fa_sm90_paged_level
fa_sm90_paged_level_of_groups(const struct fa_sm90_paged_grouped &shared)
{
	return { (shared.all.first + shared.groups) * 2 * C::ROWS + C::ROWS, 2u * C::ROWS,
		 shared.groups, 0 };
}

/* A share's row begins here. */
template <class C>
__device__ __forceinline__ char *fa_sm90_paged_place(const struct fa_cuda_paged_attention &args,
                                                     uint32_t row)
{
	return (char *)args.partials + (uint64_t)row * (C::DIM_V * 4);
}

/* Hides what the block's places have. All that compute, before they meet for the first time;
 * thread 0 then fences. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_hide(const struct fa_cuda_paged_attention &args)
{
	constexpr uint32_t other = C::ROWS * C::DIM_V * 4; /* bytes from place to place */
	const uint32_t nothing = FA_SM90_PAGED_NOTHING, row = 2 * blockIdx.x * C::ROWS;
	char *const at = fa_sm90_paged_place<C>(args, row);
	uint2 *const sums = (uint2 *)args.partial_sums + row;

#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < args.place_rows * (C::DIM_V / 4); i += C::JOINED) {
		fa_st_relaxed_device(at + i * 16, make_uint4(nothing, nothing, nothing, nothing));
		fa_st_relaxed_device(at + other + i * 16,
		                     make_uint4(nothing, nothing, nothing, nothing));
		if (i < args.place_rows) {
			fa_st_relaxed_device(sums + i, make_uint2(nothing, nothing));
			fa_st_relaxed_device(sums + C::ROWS + i, make_uint2(nothing, nothing));
		}
	}
}

/* Notes who shares the part. One thread, when the segment begins. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_note(const struct fa_cuda_paged_attention &args,
                                                   const fa_paged_walk_of<C> &walk,
                                                   struct fa_sm90_paged_shared *shared)
{
	uint32_t n;
	const uint32_t first = fa_paged_blocks(args, walk.tile, walk.item.tiles, n);

	shared->first = first;
	shared->n = n;
	shared->has_other = first * args.tiles_each + min(first, args.tiles_extra) < walk.tile;
	if constexpr (C::LEVELS) {
		struct fa_sm90_paged_grouped *const grouped =
			(struct fa_sm90_paged_grouped *)shared;

		grouped->groups = (n + FA_SM90_PAGED_AT_ONCE - 1) / FA_SM90_PAGED_AT_ONCE;
		grouped->mine = (blockIdx.x - first) % grouped->groups;
		grouped->members = (n - grouped->mine + grouped->groups - 1) / grouped->groups;
	}
}

/* Counts the block in, or its group, at the counter of block @block: how many were there before,
 * from the epoch on. The thread that has fenced, number 0, behind the note; it goes on until it
 * looks at the answer. Counts of earlier launches are below this one's epoch. */
__device__ __forceinline__ uint64_t fa_sm90_paged_count(const struct fa_cuda_paged_attention &args,
                                                        uint32_t block)
{
	uint64_t *const counter = &args.counters[block];

	fa_atomic_max(counter, args.epoch << 16);
	/* ptxas would see to it that many threads may add the same, and have the warp wait. */
	return fa_count(counter, 1 + fa_thread_index());
}

/* A row's maximum and sum, and four of its columns. */
struct fa_sm90_paged_total {
	float max, sum, x, y, z, w;

	/* @top: another maximum. */
	__device__ __forceinline__ void scale(float top)
	{
		const float shrink = fa_ex2(max - top);

		max = top;
		sum *= shrink;
		x *= shrink;
		y *= shrink;
		z *= shrink;
		w *= shrink;
	}

	/* Of lanes that are LANES apart and have the same maximum. */
	template <int LANES> __device__ __forceinline__ void add_lanes(void)
	{
#pragma unroll
		for (uint32_t apart = LANES; apart < 32; apart *= 2) {
			sum += __shfl_xor_sync(~0u, sum, apart);
			x += __shfl_xor_sync(~0u, x, apart);
			y += __shfl_xor_sync(~0u, y, apart);
			z += __shfl_xor_sync(~0u, z, apart);
			w += __shfl_xor_sync(~0u, w, apart);
		}
	}
};

/* Stores four columns of a share's row, of all places @at. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_give_row(const struct fa_cuda_paged_attention &args,
                                                       uint32_t at, uint32_t column,
                                                       const struct fa_sm90_paged_total &total)
{
	const uint32_t most = FA_SM90_PAGED_NOTHING - 1; /* a NaN like that */

	fa_st_relaxed_device(fa_sm90_paged_place<C>(args, at) + column * 4,
	                     make_uint4(min(__float_as_uint(total.x), most),
	                                __float_as_uint(total.y), __float_as_uint(total.z),
	                                __float_as_uint(total.w)));
	if (column == 0)
		fa_st_relaxed_device((uint2 *)args.partial_sums + at,
		                     make_uint2(min(__float_as_uint(total.max), most),
		                                __float_as_uint(total.sum)));
}

/* The same of a row of this block's share. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_give(const struct fa_cuda_paged_attention &args,
                                                   const struct fa_sm90_paged_shared &shared,
                                                   uint32_t row, uint32_t column,
                                                   const struct fa_sm90_paged_total &total)
{
	const bool other = shared.first == blockIdx.x && shared.has_other;

	fa_sm90_paged_give_row<C>(args, (2 * blockIdx.x + other) * C::ROWS + row, column, total);
}

/* Adds up row @row of the shares, columns from 4 * @quad on, with 32 / LANES lanes of the warp,
 * each LANES apart, which have one share each of as many. Each asks for all that AT_ONCE shares are
 * before it looks at the first. */
template <class C, int LANES>
__device__ __forceinline__ struct fa_sm90_paged_total
fa_sm90_paged_add(const struct fa_cuda_paged_attention &args,
                  const struct fa_sm90_paged_level &level, uint32_t row, uint32_t quad)
{
	constexpr uint32_t among = 32 / LANES;
	constexpr int at_once = FA_SM90_PAGED_AT_ONCE / among;
	const uint32_t next = level.step * among, next_bytes = next * C::DIM_V * 4;
	const uint32_t mine = among == 1 ? 0 : threadIdx.x % 32 / LANES;
	const uint32_t at_row = level.row + mine * level.step + row;
	const void *at = fa_sm90_paged_place<C>(args, at_row) + quad * 16;
	const void *sums = (const uint2 *)args.partial_sums + at_row;
	/* The first share may be in the second place. */
	uint32_t other = mine == 0 ? level.other : 0;
	struct fa_sm90_paged_total total = { -FLT_MAX, 0, 0, 0, 0, 0 };

	int32_t left = (int32_t)(level.n - mine);

#pragma unroll 1
	do {
		uint2 sum[at_once];
		uint4 out[at_once];
		float top = total.max;
		bool missing;

#pragma unroll 1
		do {
			missing = false;
			/* Offsets are to be part of the loads. */
			fa_hide(at);
			fa_hide(sums);
#pragma unroll
			for (int j = 0; j < at_once; j++) {
				const uint32_t off = j == 0 ? other : 0;

				sum[j] = make_uint2(__float_as_uint(-FLT_MAX), 0);
				out[j] = make_uint4(0, 0, 0, 0);
				if ((int)(j * among) >= left)
					continue;
				sum[j] = fa_ld_relaxed_device_v2((const uint2 *)sums + j * next +
				                                 off);
				out[j] = fa_ld_relaxed_device_v4((const char *)at + j * next_bytes +
				                                 off * (C::DIM_V * 4));
			}
#pragma unroll
			for (int j = 0; j < at_once; j++)
				missing |= sum[j].x == FA_SM90_PAGED_NOTHING ||
				           out[j].x == FA_SM90_PAGED_NOTHING;
		} while (missing);
#pragma unroll
		for (int j = 0; j < at_once; j++)
			top = fmaxf(top, __uint_as_float(sum[j].x));

		total.scale(top);
#pragma unroll
		for (int j = 0; j < at_once; j++) {
			const float weight = fa_ex2(__uint_as_float(sum[j].x) - top);

			total.sum += weight * __uint_as_float(sum[j].y);
			total.x += weight * __uint_as_float(out[j].x);
			total.y += weight * __uint_as_float(out[j].y);
			total.z += weight * __uint_as_float(out[j].z);
			total.w += weight * __uint_as_float(out[j].w);
		}
		at = (const char *)at + at_once * next_bytes;
		sums = (const uint2 *)sums + at_once * next;
		other = 0;
		left -= FA_SM90_PAGED_AT_ONCE;
	} while (left > 0);
	if constexpr (among > 1) {
		float top = total.max;

#pragma unroll
		for (uint32_t apart = LANES; apart < 32; apart *= 2)
			top = fmaxf(top, __shfl_xor_sync(~0u, top, apart));
		total.scale(top);
		total.add_lanes<LANES>();
	}
	return total;
}
