/*
 * Rows and keys in dense or ragged tensors. A SOURCE tells forward kernels which blocks of rows a
 * thread block computes and where their keys are:
 *   ARGS, attention()  the kernel's first parameter, and its struct fa_cuda_attention
 *   WORK, first_key()  a block of rows (derived from struct fa_work); earlier keys are hidden
 *   BLOCK, keep(), work_of()
 *                      the part of WORK that is kept until O is stored, and back
 *   find()             WORK of a group's BLOCK, its row the group's first; slow
 *   SCHEDULER, PRODUCER_SCHEDULER
 *                      iterate over blocks of rows, in the same order
 *   TILE               a tile of keys, and how the producer loads it
 *   k_row(), v_row()   address of a key's row
 *   loaders()          producer warps: 1, 2 or 4
 *   tails()            tiles may end in rows of another sequence
 *   PAGED              tiles may also begin with such rows; looking them up takes registers
 *   PACKED             a group's rows are of several heads (packed_source.h)
 *   origin()           position of a group's first row
 *   BAND_SINKS()       BAND kernels have the registers to add sinks
 */
#pragma once

#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm90/tile_range.h"
#include "kernels/cuda/sm90/yield.h"

#include <stdint.h>

/* A block of rows, or a group's part. */
struct fa_sm90_block {
	int32_t triple, row;
};

template <class C> struct fa_sm90_dense_scheduler {
	/* The n-th unit of a triple; n is inverted (~n) while the pair's second block is next. With
	 * a list, @triple is the unit's place in it. Unsigned, as the number after the last may
	 * exceed int32. */
	uint32_t triple;
	int32_t n;
	bool reversed = true; /* the last group has the block's first rows */

	__device__ __forceinline__ fa_sm90_dense_scheduler(const struct fa_cuda_attention &args)
	{
		const uint32_t index = fa_sm90_block_index<C>();

		triple = index;
		n = 0;
		if (args.list_units == 0) {
			triple = index / args.units_m;
			n = index - triple * args.units_m;
		}
	}

	__device__ __forceinline__ void advance(const struct fa_cuda_attention &args,
	                                        uint32_t count)
	{
		const uint32_t whole = count / args.units_m;

		triple += whole;
		n += (int32_t)(count - whole * args.units_m);
	}

	/* Returns false if the list has no more units for the thread block. */
	__device__ __forceinline__ bool take_listed(const struct fa_cuda_attention &args,
	                                            struct fa_sm90_block &ret_block)
	{
		const uint2 *const list = (const uint2 *)args.cu_seqlens_q - args.list_units;
		uint2 unit;

		if (triple >= args.list_units)
			return false;
		unit = list[triple];
		ret_block.triple = (int32_t)__shfl_sync(~0u, unit.x, 0);
		ret_block.row = (int32_t)__shfl_sync(~0u, unit.y, 0);
		triple += fa_sm90_blocks<C>(args);
		if (triple < args.list_units)
			fa_prefetch(list + triple);
		return ret_block.row != (int32_t)FA_CUDA_RAGGED_NONE;
	}

	__device__ __forceinline__ bool next(const struct fa_cuda_attention &args,
	                                     struct fa_sm90_block &ret_block,
	                                     struct fa_work &ret_work)
	{
		if (args.list_units > 0) {
			if (!take_listed(args, ret_block))
				return false;
			ret_work = fa_work_at(args, ret_block.triple, ret_block.row);
			reversed = !reversed;
			return true;
		}
#pragma unroll 1
		while (triple < (uint32_t)args.triples) {
			const bool second = n < 0;

			ret_block.triple = (int32_t)triple;
			/* A pair's longer block goes first. */
			if (!second && args.pairs && args.blocks_m - 1 - n != n) {
				ret_block.row = (args.blocks_m - 1 - n) * C::ROWS;
				n = ~n;
			} else {
				n = second ? ~n : n;
				ret_block.row = n * C::ROWS;
				advance(args, fa_sm90_blocks<C>(args));
				if (n >= args.units_m) {
					n -= args.units_m;
					triple++;
				}
			}
			ret_work = fa_work_at(args, ret_block.triple, ret_block.row);
			if (ret_work.row < ret_work.n_q) {
				reversed = !reversed;
				return true;
			}
		}
		return false;
	}
};

/* Coordinates of a tile's TMA boxes. */
template <class C> struct fa_sm90_dense_tile {
	int32_t token, head, entry, column;

	__device__ __forceinline__ void begin(const struct fa_cuda_attention &args,
	                                      const struct fa_work &work, int32_t tile, int32_t)
	{
		token = (int32_t)work.first_k + tile * C::KEYS;
		head = (int32_t)((uint32_t)work.head / (uint32_t)args.group);
		entry = args.cu_seqlens_q ? 0 : work.sequence;
		column = work.slice * C::DIM_V;
	}

	__device__ __forceinline__ void retreat(const struct fa_cuda_attention &, int32_t keys)
	{
		token -= keys;
	}

	/* COLUMNS columns of 64 elements of K or, from @first_column on, of V. A warp. */
	template <int COLUMNS>
	__device__ __forceinline__ void fetch(const struct fa_cuda_attention &, uint32_t shared,
	                                      const void *map, uint32_t barrier,
	                                      int32_t first_column, uint64_t policy) const
	{
		if (!fa_elect())
			return;
		fa_mbarrier_arrive_expect(barrier, COLUMNS * C::KV_COLUMN);
#pragma unroll
		for (int c = 0; c < COLUMNS; c++)
			fa_tma_load(shared + c * C::KV_COLUMN, map, barrier, first_column + c * 64,
			            token, head, entry, policy);
	}

	template <int COLUMNS>
	__device__ __forceinline__ void prefetch(const void *map, int32_t first_column,
	                                         uint64_t policy) const
	{
#pragma unroll 1
		for (int c = 0; c < COLUMNS; c++)
			fa_tma_prefetch(map, first_column + c * 64, token, head, entry, policy);
	}
};

struct fa_sm90_dense {
	using ARGS = struct fa_cuda_attention;
	using WORK = struct fa_work;
	using BLOCK = struct fa_sm90_block;
	template <class C> using SCHEDULER = struct fa_sm90_dense_scheduler<C>;
	template <class C> using PRODUCER_SCHEDULER = struct fa_sm90_dense_scheduler<C>;
	template <class C> using TILE = struct fa_sm90_dense_tile<C>;
	static constexpr bool PAGED = false, PACKED = false, PLANS = false;

	static constexpr bool BAND_SINKS(int dim, int keys)
	{
		return FA_SM90_BAND_SINKS(dim, keys);
	}

	static __device__ __forceinline__ const struct fa_cuda_attention &
	attention(const ARGS &args)
	{
		return args;
	}

	static __device__ __forceinline__ uint32_t loaders(const ARGS &)
	{
		return 1;
	}

	static __device__ __forceinline__ int32_t first_key(const WORK &)
	{
		return 0;
	}

	/* TMA gives zeros for rows past a tensor's end. */
	static __device__ __forceinline__ bool tails(const ARGS &args)
	{
		return args.cu_seqlens_q;
	}

	static __device__ __forceinline__ int32_t origin(const WORK &work)
	{
		return work.row + work.diagonal;
	}

	static __device__ __forceinline__ void keep(const ARGS &, BLOCK &block, const WORK &,
	                                            int32_t row)
	{
		block.row = row;
	}

	static __device__ __forceinline__ WORK work_of(const ARGS &args, const BLOCK &block)
	{
		return fa_work_at(args, block.triple, block.row);
	}

	template <class C>
	static __device__ __forceinline__ WORK find(const ARGS &args, const BLOCK &block, uint32_t)
	{
		return work_of(args, block);
	}

	static __device__ __forceinline__ const char *k_row(const ARGS &args, const WORK &work,
	                                                    int32_t key)
	{
		return fa_work_base(args.k, work.sequence, work.first_k, work.head / args.group) +
		       key * args.k.stride_token;
	}

	static __device__ __forceinline__ const char *v_row(const ARGS &args, const WORK &work,
	                                                    int32_t key)
	{
		return fa_work_base(args.v, work.sequence, work.first_k, work.head / args.group) +
		       key * args.v.stride_token;
	}
};
