/*
 * Joins the partial results of a part of decode of MLA. Each thread block stores its own; those that
 * are still there when the last has arrived add up a share of the columns each. A block waits for
 * others, and not for long, only if it has nothing else to do; otherwise it leaves. Results are added
 * in the order of keys: the bits do not depend on who adds them.
 *
 * A word of global memory counts arrivals, and those that left, LEFT each. A second one numbers the
 * blocks that stay, if some left.
 */
#pragma once

#include "kernels/cuda/common/packed-args.h"
#include "kernels/cuda/common/paged_combine.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/ptx/atomic.h"
#include "kernels/cuda/ptx/control.h"
#include "kernels/cuda/sm90/latent_config.h"
#include "kernels/cuda/sm90/latent_load.h"

#include <float.h>
#include <stdint.h>

#define FA_SM90_LATENT_LEFT 256u
static_assert(FA_CUDA_SHARE_PARTS_MAX < FA_SM90_LATENT_LEFT,
              "both fit the 16 bits below the epoch");

/* Row of a team's partial result: of the first or the second part of its range. */
template <class C>
__device__ __forceinline__ uint32_t
fa_sm90_latent_partial_row(const fa_sm90_latent_segment<C> &segment, uint32_t team, bool second)
{
	return ((2 * team + second) * segment.team_size + segment.member) * C::ROWS;
}

/* The partial results of a part: those of @n teams from @first on. */
struct fa_sm90_latent_parts {
	uint32_t first, n;
	bool in_second; /* the first team's is of its second part */
};

/* Adds up the columns [@begin, @end) in groups of four, counted over all rows. A thread has ITEMS
 * groups at a time, and loads SHARES results of each before it uses the first; SUBSETS lanes divide
 * the results of a group among them. */
template <class C, int ITEMS, int SHARES, int SUBSETS>
__device__ __forceinline__ void fa_sm90_latent_add_up(const struct fa_cuda_paged_attention &args,
                                                      const fa_sm90_latent_segment<C> &segment,
                                                      const struct fa_sm90_latent_parts &parts,
                                                      uint32_t begin, uint32_t end)
{
	constexpr uint32_t quads = C::DIM_V / 4, at_once = C::JOINED / SUBSETS;
	const uint32_t subset = threadIdx.x % SUBSETS;

#pragma unroll 1
	for (uint32_t base = begin + threadIdx.x / SUBSETS; base - threadIdx.x / SUBSETS < end;
	     base += at_once * ITEMS) {
		struct fa_paged_sum total[ITEMS];

#pragma unroll
		for (int u = 0; u < ITEMS; u++)
			total[u] = { -FLT_MAX, 0, 0, 0, 0, 0 };
#pragma unroll 1
		for (uint32_t i = subset; i < parts.n; i += SHARES * SUBSETS) {
			float2 share[ITEMS][SHARES];
			float4 out[ITEMS][SHARES];

#pragma unroll
			for (int u = 0; u < ITEMS; u++) {
				/* Indices past the last repeat it, unused. */
				const uint32_t item = min(base + u * at_once, end - 1);

#pragma unroll
				for (int j = 0; j < SHARES; j++) {
					const uint32_t of = min(i + j * SUBSETS, parts.n - 1);
					const uint32_t row = fa_sm90_latent_partial_row<C>(
								     segment, parts.first + of,
								     of == 0 && parts.in_second) +
					                     item / quads;

					share[u][j] = __ldcg((const float2 *)args.partial_sums +
					                     row);
					out[u][j] = __ldcg((const float4 *)args.partials +
					                   (uint64_t)row * quads + item % quads);
				}
			}
#pragma unroll
			for (int u = 0; u < ITEMS; u++) {
				float top = total[u].max;

#pragma unroll
				for (int j = 0; j < SHARES; j++)
					top = fmaxf(top, share[u][j].x);

				const float shrink = fa_ex2(total[u].max - top);

				total[u] = { top,
					     total[u].sum * shrink,
					     total[u].x * shrink,
					     total[u].y * shrink,
					     total[u].z * shrink,
					     total[u].w * shrink };
#pragma unroll
				for (int j = 0; j < SHARES; j++) {
					const float weight = i + j * SUBSETS < parts.n
					                             ? fa_ex2(share[u][j].x - top)
					                             : 0;

					total[u].sum = fmaf(weight, share[u][j].y, total[u].sum);
					total[u].x = fmaf(weight, out[u][j].x, total[u].x);
					total[u].y = fmaf(weight, out[u][j].y, total[u].y);
					total[u].z = fmaf(weight, out[u][j].z, total[u].z);
					total[u].w = fmaf(weight, out[u][j].w, total[u].w);
				}
			}
		}
#pragma unroll
		for (int u = 0; u < ITEMS; u++) {
			const uint32_t item = base + u * at_once;
			struct fa_paged_sum &sum = total[u];

#pragma unroll
			for (int apart = 1; apart < SUBSETS; apart *= 2) {
				const float other = __shfl_xor_sync(~0u, sum.max, apart);
				const float top = fmaxf(sum.max, other);
				const float shrink = fa_ex2(sum.max - top);

				sum.max = top;
				sum.sum *= shrink;
				sum.x *= shrink;
				sum.y *= shrink;
				sum.z *= shrink;
				sum.w *= shrink;
				sum.sum += __shfl_xor_sync(~0u, sum.sum, apart);
				sum.x += __shfl_xor_sync(~0u, sum.x, apart);
				sum.y += __shfl_xor_sync(~0u, sum.y, apart);
				sum.z += __shfl_xor_sync(~0u, sum.z, apart);
				sum.w += __shfl_xor_sync(~0u, sum.w, apart);
			}
			if (item >= end || subset > 0)
				continue;

			const struct fa_paged_out_row target = fa_paged_out_row_of<C>(args, segment,
			                                                              item / quads);
			const uint32_t column = item % quads * 4;
			const float factor = fa_paged_factor(args.attention, target.head, sum.max,
			                                     sum.sum,
			                                     column == 0 ? target.lse : NULL);

			*(uint2 *)(target.out + column * C::BYTES) = make_uint2(
				fa_pack<typename C::T>(sum.x * factor, sum.y * factor),
				fa_pack<typename C::T>(sum.z * factor, sum.w * factor));
		}
	}
}

/* What a block does once its partial result is stored: it adds up share number @rank of @of; 0: none,
 * it leaves. */
struct fa_sm90_latent_share {
	uint32_t rank, of;
};

/* Called by one thread. */
template <class C>
__device__ __forceinline__ struct fa_sm90_latent_share
fa_sm90_latent_arrive(const struct fa_cuda_paged_attention &args,
                      const fa_sm90_latent_segment<C> &segment,
                      const struct fa_sm90_latent_parts &parts)
{
	const bool waits = segment.left <= args.epilogue_tiles;
	uint64_t *const counter = args.counters + parts.first * segment.team_size + segment.member;
	uint64_t *const ticket = counter + FA_CUDA_PAGED_BLOCKS / 2;
	const uint64_t begin_ns = waits ? fa_timer_ns() : 0;
	uint64_t count;
	uint32_t left;

	fa_atomic_max(counter, args.epoch << 16);
	count = fa_atomic_add_ordered(counter, 1) + 1;
	for (uint32_t looks = 1; (count & (FA_SM90_LATENT_LEFT - 1)) < parts.n; looks++) {
		/* Reading the clock takes as long as a look at the counter. */
		const bool gives_up = !waits || (looks % 8 == 0 &&
		                                 fa_timer_ns() - begin_ns >= args.join_wait_ns);

		/* Fails if another arrived meanwhile. */
		if (gives_up &&
		    fa_atomic_swap(counter, count, count + FA_SM90_LATENT_LEFT) == count)
			return { 0, 0 };
		count = fa_ld_acquire_device(counter);
	}
	left = (uint32_t)(count - (args.epoch << 16)) / FA_SM90_LATENT_LEFT;
	if (left == 0)
		return { segment.team - parts.first, parts.n };
	if (left == parts.n - 1)
		return { 0, 1 };
	fa_atomic_max(ticket, args.epoch << 16);
	return { (uint32_t)(fa_atomic_count(ticket, 1) - (args.epoch << 16)), parts.n - left };
}

/* Called by all consumers, after a barrier behind their stores of the partial result. */
template <class C>
__device__ __forceinline__ void fa_sm90_latent_join(const struct fa_cuda_paged_attention &args,
                                                    const fa_sm90_latent_segment<C> &segment,
                                                    uint32_t shared, uint32_t rows)
{
	const struct fa_paged_ranges ranges = fa_paged_ranges_of<C::OWN>(args);
	const uint32_t first = fa_paged_block_of(ranges, segment.tile + args.epilogue_tiles);
	const uint32_t last = fa_paged_block_of(ranges, segment.tile + segment.item.tiles - 1);
	const struct fa_sm90_latent_parts parts = { first, last - first + 1,
		                                    ranges.first_tile(first) < segment.tile };
	const uint32_t items = rows * (C::DIM_V / 4);

	if (threadIdx.x == 0) {
		const struct fa_sm90_latent_share share = fa_sm90_latent_arrive<C>(args, segment,
		                                                                   parts);

		fa_st_shared(shared + C::JOIN, share.rank);
		fa_st_shared(shared + C::JOIN + 4, share.of);
	}
	C::join(); /* the answer is there */

	const uint32_t rank = fa_ld_shared(shared + C::JOIN),
		       of = fa_ld_shared(shared + C::JOIN + 4);

	if (of == 0)
		return;

	const uint32_t begin = items * rank / of, end = items * (rank + 1) / of;

	if (parts.n <= 2)
		fa_sm90_latent_add_up<C, 8, 2, 1>(args, segment, parts, begin, end);
	else if (parts.n <= 4)
		fa_sm90_latent_add_up<C, 4, 4, 1>(args, segment, parts, begin, end);
	else if (parts.n <= 8)
		fa_sm90_latent_add_up<C, 2, 8, 1>(args, segment, parts, begin, end);
	else if (parts.n <= 16)
		fa_sm90_latent_add_up<C, 1, 16, 1>(args, segment, parts, begin, end);
	else if (parts.n <= 32)
		fa_sm90_latent_add_up<C, 1, 32, 1>(args, segment, parts, begin, end);
	else
		fa_sm90_latent_add_up<C, 1, 32, 2>(args, segment, parts, begin, end);
}
