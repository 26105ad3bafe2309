/*
 * A block's work: query rows of one (sequence, head, slice of V) triple.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/memory.h"

#include <stdint.h>

struct fa_work {
	int32_t sequence, head, slice;
	int32_t row;
	int32_t n_q, n_k;
	int32_t diagonal; /* n_k - n_q: row i is at key i + diagonal */
	uint32_t first_q; /* tokens before the sequence, 0 unless ragged */
	uint32_t first_k;
};

__device__ __forceinline__ struct fa_work fa_work_at(const struct fa_cuda_attention &args,
                                                     int32_t triple, int32_t row)
{
	const int32_t heads = args.heads * args.slices;
	struct fa_work work;

	work.sequence = (int32_t)((uint32_t)triple / (uint32_t)heads);
	work.head = triple - work.sequence * heads;
	work.slice = 0;
	if (args.slices > 1) {
		work.slice = (int32_t)((uint32_t)work.head / (uint32_t)args.heads);
		work.head -= work.slice * args.heads;
	}
	work.row = row;
	work.n_q = args.seqlen_q;
	work.n_k = args.seqlen_k;
	work.first_q = 0;
	work.first_k = 0;
	if (args.cu_seqlens_q) {
		const uint32_t first_q = args.cu_seqlens_q[work.sequence];
		const uint32_t first_k = args.cu_seqlens_k[work.sequence];
		const uint32_t n_q = args.cu_seqlens_q[work.sequence + 1] - first_q;
		const uint32_t n_k = args.cu_seqlens_k[work.sequence + 1] - first_k;

		/* Shuffles mark these as uniform. Without cu_seqlens there is no division. */
		work.first_q = __shfl_sync(~0u, first_q, 0);
		work.first_k = __shfl_sync(~0u, first_k, 0);
		work.n_q = (int32_t)__shfl_sync(~0u, n_q, 0);
		work.n_k = (int32_t)__shfl_sync(~0u, n_k, 0);
	}
	work.diagonal = work.n_k - work.n_q;
	return work;
}

/* @rows: of a block. Reads blockIdx opaquely: a second call saves registers. */
__device__ __forceinline__ struct fa_work fa_work_get(const struct fa_cuda_attention &args,
                                                      int32_t rows)
{
	const int32_t block_index = fa_block_index();
	const int32_t section_blocks = args.section * args.blocks_m;
	const int32_t section = block_index / section_blocks;
	const int32_t rest = block_index % section_blocks;
	const int32_t width = min(args.section, args.triples - section * args.section);
	const int32_t block = rest / width;
	const int32_t triple = section * args.section + rest % width;

	return fa_work_at(args, triple,
	                  (args.longest_last ? args.blocks_m - 1 - block : block) * rows);
}

__device__ __forceinline__ const char *fa_work_base(const struct fa_cuda_tensor &tensor,
                                                    int32_t sequence, int64_t first, int32_t head)
{
	return (const char *)tensor.data + sequence * tensor.stride_batch +
	       first * tensor.stride_token + head * tensor.stride_head;
}
