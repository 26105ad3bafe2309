/*
 * Rows and keys in tensors: which blocks of rows a block of threads computes, where their
 * keys lie.
 *
 * What a SOURCE gives:
 *   ARGS, attention()  the kernel's first parameter, and what of it describes attention
 *   WORK, first()      a block of rows (struct fa_work at least); keys before the first are
 *                      hidden
 *   BLOCK, keep(), work_of()
 *                      what is kept of a group's rows until they are written, and back
 *   WALK, LOADERS_WALK from one block of rows to the next, in the same order
 *   TILE               a tile of keys, as the loading warp has it fetched
 *   k_row(), v_row()   where a key's row lies
 *   loaders()          how many warps load: a power of two, 4 at most
 *   tails()            whether tiles may end in rows that are not the sequence's
 *   PAGED              they may begin with such, too, and looking them up takes registers
 */
#pragma once

#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/common/work.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm90/span.h"
#include "kernels/cuda/sm90/yield.h"

#include <stdint.h>

/* Which block of rows, or a group's part of it: enough to ask for the rest again. */
struct fa_sm90_block {
	int32_t triple, row;
};

/* Goes from one block of rows to the next. */
template <class C> struct fa_sm90_walk {
	/* The next unit's, the n-th of the triple. Unsigned: one past the last may be twice
	 * as many as there are. */
	uint32_t triple;
	int32_t n;
	int32_t triple_step, n_step; /* from a unit to the next: no division on the way */
	int32_t second;              /* the second block of a pair is next */
	bool turned = true;          /* the last group has the block's first rows */

	__device__ __forceinline__ fa_sm90_walk(const struct fa_cuda_attention &args)
	{
		const uint32_t index = fa_sm90_block_index<C>(), blocks = fa_sm90_blocks<C>(args);

		triple = index / args.units_m;
		n = index - triple * args.units_m;
		triple_step = blocks / args.units_m;
		n_step = blocks - triple_step * args.units_m;
		second = 0;
	}

	/* Returns false where there are no more. */
	__device__ __forceinline__ bool next(const struct fa_cuda_attention &args,
	                                     struct fa_sm90_block &ret_block,
	                                     struct fa_work &ret_work)
	{
#pragma unroll 1
		while (triple < (uint32_t)args.triples) {
			const int32_t opposite = args.blocks_m - 1 - n;

			ret_block.triple = (int32_t)triple;
			/* Of a pair, the longer goes first. */
			if (!second && args.pairs && opposite != n) {
				second = 1;
				ret_block.row = opposite * C::ROWS;
			} else {
				second = 0;
				ret_block.row = n * C::ROWS;
				triple += triple_step;
				n += n_step;
				if (n >= args.units_m) {
					n -= args.units_m;
					triple++;
				}
			}
			ret_work = fa_work_at(args, ret_block.triple, ret_block.row);
			if (ret_work.row < ret_work.n_q) {
				turned = !turned;
				return true;
			}
		}
		return false;
	}
};

/* A tile of keys: coordinates of TMA boxes. */
template <class C> struct fa_sm90_tile {
	int32_t token, head, entry, column;

	__device__ __forceinline__ void begin(const struct fa_cuda_attention &args,
	                                      const struct fa_work &work, int32_t tile)
	{
		token = (int32_t)work.first_k + tile * C::KEYS;
		head = (int32_t)((uint32_t)work.head / (uint32_t)args.group);
		entry = args.cu_seqlens_q ? 0 : work.sequence;
		column = work.slice * C::DIM_V;
	}

	/* On to the tile before. */
	__device__ __forceinline__ void retreat(const struct fa_cuda_attention &)
	{
		token -= C::KEYS;
	}

	/* Starts the copy of COLUMNS columns of 64 elements of K or, with @first_column, V: one
	 * thread does. */
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

	/* Has L2 fetch them. */
	template <int COLUMNS>
	__device__ __forceinline__ void touch(const void *map, int32_t first_column,
	                                      uint64_t policy) const
	{
#pragma unroll 1
		for (int c = 0; c < COLUMNS; c++)
			fa_tma_touch(map, first_column + c * 64, token, head, entry, policy);
	}
};

struct fa_sm90_dense {
	using ARGS = struct fa_cuda_attention;
	using WORK = struct fa_work;
	using BLOCK = struct fa_sm90_block;
	template <class C> using WALK = struct fa_sm90_walk<C>;
	template <class C> using LOADERS_WALK = struct fa_sm90_walk<C>;
	template <class C> using TILE = struct fa_sm90_tile<C>;
	static constexpr bool PAGED = false;

	static __device__ __forceinline__ const struct fa_cuda_attention &
	attention(const ARGS &args)
	{
		return args;
	}

	static __device__ __forceinline__ uint32_t loaders(const ARGS &)
	{
		return 1;
	}

	static __device__ __forceinline__ int32_t first(const WORK &)
	{
		return 0;
	}

	/* TMA gives zeros past a tensor's end. */
	static __device__ __forceinline__ bool tails(const ARGS &args)
	{
		return args.cu_seqlens_q;
	}

	static __device__ __forceinline__ void keep(BLOCK &block, const WORK &, int32_t row)
	{
		block.row = row;
	}

	static __device__ __forceinline__ WORK work_of(const ARGS &args, const BLOCK &block)
	{
		return fa_work_at(args, block.triple, block.row);
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
