/* Which blocks of rows a block of threads computes, and which keys of each. */
#pragma once

#include "kernels/cuda/common/work.h"

#include <stdint.h>

/* The tiles of keys that a block of rows sees, walked from the last to the first. */
struct fa_sm90_span {
	int32_t last, count;
};

template <class C>
__device__ __forceinline__ struct fa_sm90_span
fa_sm90_span_get(const struct fa_cuda_attention &args, const struct fa_work &work)
{
	int32_t begin = 0, end = work.n_k;

	if (C::BAND) {
		const int32_t last_row = min(work.row + C::ROWS, work.n_q) - 1;

		begin = max(begin, work.row + work.diagonal - args.window_left);
		end = min(end, last_row + work.diagonal + args.window_right + 1);
	}
	if (end <= begin)
		return { 0, 0 };
	return { (end - 1) / C::KEYS, (end - 1) / C::KEYS - begin / C::KEYS + 1 };
}

/* Which block of rows: enough to ask for the rest again. */
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

	__device__ __forceinline__ fa_sm90_walk(const struct fa_cuda_attention &args)
	{
		triple = blockIdx.x / args.units_m;
		n = blockIdx.x - triple * args.units_m;
		triple_step = gridDim.x / args.units_m;
		n_step = gridDim.x - triple_step * args.units_m;
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
			if (ret_work.row < ret_work.n_q)
				return true;
		}
		return false;
	}
};
