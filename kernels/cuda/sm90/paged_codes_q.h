/*
 * Query rows of decode over codes. One warp converts them to fp16 fragments, a segment ahead of the
 * consumers, which load them to registers or, where those are too few, at each use.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/common/quantised.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/sm90/paged_codes_config.h"
#include "kernels/cuda/sm90/paged_epilogue.h"
#include "kernels/cuda/sm90/paged_load.h"

#include <stdint.h>

/* The elements of a row of Q that a lane needs: of the columns that it loads of K, 16 of each
 * 64. */
template <class C> struct fa_sm90_codes_q_row {
	uint32_t words[C::DIM / 64][8];

	__device__ __forceinline__ void load(const struct fa_cuda_paged_attention &args,
	                                     const char *row)
	{
		const uint32_t t = threadIdx.x % 4;

#pragma unroll
		for (int i = 0; i < C::DIM / 32; i++) {
			const uint4 value = fa_paged_q_chunk<C>(args.attention, row,
			                                        i / 2 * 8 + 2 * t + i % 2);

			words[i / 2][i % 2 * 4] = value.x;
			words[i / 2][i % 2 * 4 + 1] = value.y;
			words[i / 2][i % 2 * 4 + 2] = value.z;
			words[i / 2][i % 2 * 4 + 3] = value.w;
		}
	}

	/* Returns the factor of its dot products. */
	__device__ __forceinline__ float to_f16(const struct fa_cuda_paged_attention &args)
	{
		uint32_t most = 0;

		if (fa_quantised_of(args).dtype != FA_STORE_DTYPE_BF16)
			return 1;
#pragma unroll
		for (int c = 0; c < C::DIM / 64; c++)
#pragma unroll
			for (int w = 0; w < 8; w += 4)
				most = max(most, fa_quantised_max_magnitude(make_uint4(
							 words[c][w], words[c][w + 1],
							 words[c][w + 2], words[c][w + 3])));
		most = max(most, __shfl_xor_sync(~0u, most, 1));
		most = max(most, __shfl_xor_sync(~0u, most, 2));

		const struct fa_quantised_q_scale power(most);

#pragma unroll
		for (int c = 0; c < C::DIM / 64; c++)
#pragma unroll
			for (int w = 0; w < 8; w++)
				words[c][w] = power.to_f16(words[c][w]);
		return power.factor;
	}

	/* Stores the row as row g + 8 (@r % 2) of atom @r / 2. @q: the segment's Q. */
	__device__ __forceinline__ void store(uint32_t q, int r) const
	{
		const uint32_t at = q + r / 2 * (C::DIM * 32) + threadIdx.x % 32 * 16 + r % 2 * 4;

#pragma unroll
		for (int s = 0; s < C::DIM / 16; s++) {
			fa_st_shared(at + s * 512, words[s / 4][s % 4 * 2]);
			fa_st_shared(at + s * 512 + 8, words[s / 4][s % 4 * 2 + 1]);
		}
	}
};

/* Valid after fa_sm90_codes_start(). */
template <class C>
__device__ __forceinline__ fa_paged_segment_of<C>
fa_sm90_codes_first_walk(const char *shared_memory)
{
	return *(const fa_paged_segment_of<C> *)(shared_memory + C::FIRST_WALK_AT);
}

/* Runs the converting warp. It writes a segment's buffer once the segment two before has ended. */
template <class C>
__device__ __forceinline__ void fa_sm90_codes_convert_q(const struct fa_cuda_paged_attention &args,
                                                        char *shared_memory)
{
	const struct fa_cuda_paged_quantised &quantised = fa_quantised_of(args);
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t lane = threadIdx.x % 32, g = lane / 4;
	fa_paged_segment_of<C> segment = fa_sm90_codes_first_walk<C>(shared_memory);
	uint32_t slot = 0, parity = 1;

	do {
		const int there = (int)segment.rows(args, C::ROWS);
		char *const q = shared_memory + C::Q + slot * C::Q_BYTES;

		if (C::ATOMS > 1)
			fa_sm90_paged_prefetch_q<C>(args, segment);
			/* One at a time, as registers are few. */
#pragma unroll 1
		for (int r = 0; 8 * r < there; r++) {
			struct fa_sm90_codes_q_row<C> row;
			float factor;

			row.load(args, fa_paged_q_row<C>(args, segment, g + 8 * r));
			if (r == 0)
				fa_mbarrier_wait(shared + C::Q_EMPTY + 8 * slot, parity);
			factor = row.to_f16(args);
			row.store(fa_shared_address(q), r);
			if (!quantised.token_scales)
				factor *= fa_quantised_k_scale<C>(args, segment.kv_head(args));
			if (lane % 4 == 0)
				((float *)(q + C::FACTORS))[g + 8 * r] = factor;
		}
		for (uint32_t i = lane; i < C::ROWS; i += 32)
			((struct fa_paged_row *)(q + C::ROWS_INFO))[i] = fa_sm90_paged_fact_of<C>(
				args, segment, i);
		__syncwarp(); /* all lanes have stored */
		if (lane == 0)
			fa_mbarrier_arrive(shared + C::Q_FULL + 8 * slot);
		slot ^= 1;
		parity ^= slot ^ 1;
	} while (segment.next(args));
}

template <class C, bool IN_REGISTERS = C::Q_IN_REGISTERS> struct fa_sm90_codes_q {
	uint4 steps[C::ATOMS][C::DIM / 16];

	__device__ __forceinline__ void load(uint32_t q)
	{
#pragma unroll
		for (int i = 0; i < C::ATOMS * C::DIM / 16; i++)
			steps[i / (C::DIM / 16)][i % (C::DIM / 16)] = fa_ld_shared_v4(
				q + i * 512 + threadIdx.x % 32 * 16);
	}

	__device__ __forceinline__ uint4 get(int atom, int step) const
	{
		return steps[atom][step];
	}
};

template <class C> struct fa_sm90_codes_q<C, false> {
	uint32_t at;

	__device__ __forceinline__ void load(uint32_t q)
	{
		at = q + threadIdx.x % 32 * 16;
	}

	__device__ __forceinline__ uint4 get(int atom, int step) const
	{
		return fa_ld_shared_v4(at + (atom * (C::DIM / 16) + step) * 512);
	}
};
