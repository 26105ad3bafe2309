/*
 * Reduces a part's partial results over thread blocks, in decode with bulk copies, in block order
 * (docs/kernels.md). A block has two places for them in global memory, for the first and the last
 * part of its range.
 *  - A block arrives at the part's counter after its last tile of the part, and merges its warps
 *    meanwhile. The last to arrive reduces.
 *  - A partial result has no ready flag: it overwrites EMPTY, 16 bytes at a time, and the reducing
 *    block polls. All blocks that it polls for have arrived, so they run and will store.
 *  - A block stores EMPTY to its places and fences before its first arrival. PTX's model asks for a
 *    fence after the counter's answer, too; it is left out, as L2 answers loads of GPU scope, and
 *    they follow the branch on that answer.
 * TWO_LEVEL: the blocks of a part form G groups, every G-th block in one, each reduced by its last
 * arrival; the last group reduces the groups. A group uses the counter and the second place of its
 * second block, which is free, as that block is neither the part's first nor its last.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_combine.h"
#include "kernels/cuda/common/paged_segment.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm90/paged_kernels.h"

#include <float.h>
#include <stdint.h>

/* Bits with which no partial result begins. */
#define FA_SM90_PAGED_EMPTY 0xffffffffu

/* Limit of polls for results of blocks that have arrived, over a client's own pages; it takes
 * milliseconds. */
#define FA_SM90_OWN_POLLS (1u << 16)

/* How a segment's part is split among blocks; stored at C::SPLIT_AT. Thread 0 writes is_last, the
 * noting thread the rest (fa_sm90_paged_segment_begin()). */
struct fa_sm90_paged_split {
	uint32_t first, n;        /* blocks that share the part */
	uint32_t first_in_second; /* the first block's result lies in its second place */
	uint32_t is_last;         /* valid after the last merge barrier */
};

/* The split in a two-level reduction (TWO_LEVEL). Thread 0 writes is_root. */
struct fa_sm90_paged_split_groups {
	struct fa_sm90_paged_split all;
	uint32_t groups, group; /* group: this block's */
	uint32_t members;       /* blocks of its group */
	uint32_t is_root;       /* this block reduces the groups */
};
static_assert(sizeof(struct fa_sm90_paged_split_groups) <= 32, "fits C::SPLIT_AT");

/* Partial results of a part, of a group or of the groups, in order of addition. */
struct fa_sm90_paged_partials {
	uint32_t row, step; /* row: of the first result; step: from result to result */
	uint32_t n;
	uint32_t second; /* number of rows to add for the first result */
};

template <class C>
__device__ __forceinline__ struct fa_sm90_paged_partials
fa_sm90_paged_partials_of_part(const struct fa_sm90_paged_split &split)
{
	return { split.first * 2 * C::ROWS, 2u * C::ROWS, split.n,
		 split.first_in_second ? (uint32_t)C::ROWS : 0 };
}

/* The block whose counter and second place this block's group uses. */
__device__ __forceinline__ uint32_t
fa_sm90_paged_group_block(const struct fa_sm90_paged_split_groups &split)
{
	return split.all.first + split.groups + split.group;
}

/* At whose counter this block arrives, and how many arrivals complete it. */
template <class C>
__device__ __forceinline__ uint32_t
fa_sm90_paged_counter_block(const struct fa_sm90_paged_split &split)
{
	if constexpr (C::TWO_LEVEL) {
		const struct fa_sm90_paged_split_groups &grouped =
			(const struct fa_sm90_paged_split_groups &)split;

		if (grouped.groups > 1)
			return fa_sm90_paged_group_block(grouped);
	}
	return split.first;
}

template <class C>
__device__ __forceinline__ uint32_t fa_sm90_paged_arrivals(const struct fa_sm90_paged_split &split)
{
	if constexpr (C::TWO_LEVEL)
		return ((const struct fa_sm90_paged_split_groups &)split).members;
	return split.n;
}

template <class C>
__device__ __forceinline__ struct fa_sm90_paged_partials
fa_sm90_paged_partials_of_group(const struct fa_sm90_paged_split_groups &split)
{
	return { (split.all.first + split.group) * 2 * C::ROWS, split.groups * 2 * C::ROWS,
		 split.members,
		 split.group == 0 && split.all.first_in_second ? (uint32_t)C::ROWS : 0 };
}

template <class C>
__device__ __forceinline__ struct fa_sm90_paged_partials
fa_sm90_paged_partials_of_groups(const struct fa_sm90_paged_split_groups &split)
{
	return { (split.all.first + split.groups) * 2 * C::ROWS + C::ROWS, 2u * C::ROWS,
		 split.groups, 0 };
}

template <class C>
__device__ __forceinline__ char *
fa_sm90_paged_partial_address(const struct fa_cuda_paged_attention &args, uint32_t row)
{
	return (char *)args.partials + (uint64_t)row * (C::DIM_V * 4);
}

/* All consumers; a barrier and a fence by thread 0 follow. */
template <class C>
__device__ __forceinline__ void
fa_sm90_paged_clear_partials(const struct fa_cuda_paged_attention &args)
{
	constexpr uint32_t second = C::ROWS * C::DIM_V * 4;
	const uint32_t nothing = FA_SM90_PAGED_EMPTY, row = 2 * blockIdx.x * C::ROWS;
	char *const at = fa_sm90_paged_partial_address<C>(args, row);
	uint2 *const sums = (uint2 *)args.partial_sums + row;

#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < args.partial_rows * (C::DIM_V / 4); i += C::JOINED) {
		fa_st_relaxed_device(at + i * 16, make_uint4(nothing, nothing, nothing, nothing));
		fa_st_relaxed_device(at + second + i * 16,
		                     make_uint4(nothing, nothing, nothing, nothing));
		if (i < args.partial_rows) {
			fa_st_relaxed_device(sums + i, make_uint2(nothing, nothing));
			fa_st_relaxed_device(sums + C::ROWS + i, make_uint2(nothing, nothing));
		}
	}
}

/* One thread. */
template <class C>
__device__ __forceinline__ void fa_sm90_paged_split_init(const struct fa_cuda_paged_attention &args,
                                                         const fa_paged_segment_of<C> &segment,
                                                         struct fa_sm90_paged_split *split)
{
	uint32_t n;
	const struct fa_paged_ranges ranges = fa_paged_ranges_of<C::OWN>(args);
	const uint32_t first = fa_paged_blocks(args, ranges, segment.tile, segment.item.tiles, n);

	split->first = first;
	split->n = n;
	split->first_in_second = ranges.first_tile(first) < segment.tile;
	if constexpr (C::TWO_LEVEL) {
		struct fa_sm90_paged_split_groups *const grouped =
			(struct fa_sm90_paged_split_groups *)split;

		grouped->groups = (n + FA_SM90_PAGED_REDUCE_FANIN - 1) / FA_SM90_PAGED_REDUCE_FANIN;
		grouped->group = (blockIdx.x - first) % grouped->groups;
		grouped->members = (n - grouped->group + grouped->groups - 1) / grouped->groups;
	}
}

/* Returns epoch << 16 + the arrivals before. Thread 0, after the fence. Earlier launches' counts
 * are below this epoch. */
__device__ __forceinline__ uint64_t fa_sm90_paged_arrive(const struct fa_cuda_paged_attention &args,
                                                         uint32_t block)
{
	uint64_t *const counter = &args.counters[block];

	fa_atomic_max(counter, args.epoch << 16);
	/* A uniform operand would make ptxas aggregate over the warp and wait. */
	return fa_atomic_count(counter, 1 + fa_thread_index());
}

/* Maximum and sum of a row, and four of its columns. */
struct fa_sm90_paged_total {
	float max, sum, x, y, z, w;

	__device__ __forceinline__ void scale(float max_of_all)
	{
		const float shrink = fa_ex2(max - max_of_all);

		max = max_of_all;
		sum *= shrink;
		x *= shrink;
		y *= shrink;
		z *= shrink;
		w *= shrink;
	}

	/* Adds over lanes that are LANES apart and have the same maximum. */
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

template <class C>
__device__ __forceinline__ void
fa_sm90_paged_store_partial_row(const struct fa_cuda_paged_attention &args, uint32_t at,
                                uint32_t column, const struct fa_sm90_paged_total &total)
{
	const uint32_t most = FA_SM90_PAGED_EMPTY - 1;

	fa_st_relaxed_device(fa_sm90_paged_partial_address<C>(args, at) + column * 4,
	                     make_uint4(min(__float_as_uint(total.x), most),
	                                __float_as_uint(total.y), __float_as_uint(total.z),
	                                __float_as_uint(total.w)));
	if (column == 0)
		fa_st_relaxed_device((uint2 *)args.partial_sums + at,
		                     make_uint2(min(__float_as_uint(total.max), most),
		                                __float_as_uint(total.sum)));
}

template <class C>
__device__ __forceinline__ void
fa_sm90_paged_store_partial(const struct fa_cuda_paged_attention &args,
                            const struct fa_sm90_paged_split &split, uint32_t row, uint32_t column,
                            const struct fa_sm90_paged_total &total)
{
	const bool second = split.first == blockIdx.x && split.first_in_second;

	fa_sm90_paged_store_partial_row<C>(args, (2 * blockIdx.x + second) * C::ROWS + row, column,
	                                   total);
}

/* Reduces four columns from 4 * @quad on of row @row. 32 / LANES lanes, LANES apart, each take a
 * share of the results, and issue a round's loads before they use the first. */
template <class C, int LANES>
__device__ __forceinline__ struct fa_sm90_paged_total
fa_sm90_paged_reduce(const struct fa_cuda_paged_attention &args,
                     const struct fa_sm90_paged_partials &partials, uint32_t row, uint32_t quad)
{
	constexpr uint32_t among = 32 / LANES;
	constexpr int at_once = FA_SM90_PAGED_REDUCE_FANIN / among;
	const uint32_t next = partials.step * among, next_bytes = next * C::DIM_V * 4;
	const uint32_t subset = among == 1 ? 0 : threadIdx.x % 32 / LANES;
	const uint32_t at_row = partials.row + subset * partials.step + row;
	const void *at = fa_sm90_paged_partial_address<C>(args, at_row) + quad * 16;
	const void *sums = (const uint2 *)args.partial_sums + at_row;
	uint32_t second = subset == 0 ? partials.second : 0;
	struct fa_sm90_paged_total total = { -FLT_MAX, 0, 0, 0, 0, 0 };

	int32_t left = (int32_t)(partials.n - subset);

#pragma unroll 1
	do {
		uint2 sum[at_once];
		uint4 out[at_once];
		float max_of_all = total.max;
		uint32_t polls = 0;
		bool missing;

#pragma unroll 1
		do {
			missing = false;
			/* Makes offsets part of the load instructions. */
			fa_opaque(at);
			fa_opaque(sums);
#pragma unroll
			for (int j = 0; j < at_once; j++) {
				const uint32_t off = j == 0 ? second : 0;

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
				missing |= sum[j].x == FA_SM90_PAGED_EMPTY ||
				           out[j].x == FA_SM90_PAGED_EMPTY;
			/* Over a client's own pages blocks may disagree about their parts. */
			if (C::OWN && ++polls == FA_SM90_OWN_POLLS)
				break;
		} while (missing);
#pragma unroll
		for (int j = 0; j < at_once; j++)
			max_of_all = fmaxf(max_of_all, __uint_as_float(sum[j].x));

		total.scale(max_of_all);
#pragma unroll
		for (int j = 0; j < at_once; j++) {
			const float weight = fa_ex2(__uint_as_float(sum[j].x) - max_of_all);

			total.sum += weight * __uint_as_float(sum[j].y);
			total.x += weight * __uint_as_float(out[j].x);
			total.y += weight * __uint_as_float(out[j].y);
			total.z += weight * __uint_as_float(out[j].z);
			total.w += weight * __uint_as_float(out[j].w);
		}
		at = (const char *)at + at_once * next_bytes;
		sums = (const uint2 *)sums + at_once * next;
		second = 0;
		left -= FA_SM90_PAGED_REDUCE_FANIN;
	} while (left > 0);
	if constexpr (among > 1) {
		float max_of_all = total.max;

#pragma unroll
		for (uint32_t apart = LANES; apart < 32; apart *= 2)
			max_of_all = fmaxf(max_of_all, __shfl_xor_sync(~0u, max_of_all, apart));
		total.scale(max_of_all);
		total.add_lanes<LANES>();
	}
	return total;
}
