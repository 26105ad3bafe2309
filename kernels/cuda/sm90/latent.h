/*
 * Decode of MLA in absorbed form: attention over pages for few rows of many heads, where V is the
 * front of K. Blocks divide the tiles as in sm80/paged_decode.h, but a team of thread blocks
 * computes row blocks of 64 rows of the same tiles at the same time: they read K from L2.
 *
 * A producer warp loads (latent_load.h), or four widen codes (latent_widen.h). Each of two consumer
 * groups has half of O's columns, and computes the logits of every second tile; P goes to the other
 * group through shared memory. Tiles come in pairs:
 *   first group    S = Q K^T of tile 0, softmax, O += P V of tile 0, then of tile 1
 *   second group   S of tile 1, O += P V of tile 0, softmax of tile 1, O += P V of tile 1
 * so one group's products run while the other computes exponentials. Maxima go along with P: each
 * group takes the other's before it computes its own.
 */
#pragma once

#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/paged_rows.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/control.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/latent_config.h"
#include "kernels/cuda/sm90/latent_join.h"
#include "kernels/cuda/sm90/latent_load.h"
#include "kernels/cuda/sm90/latent_softmax.h"
#include "kernels/cuda/sm90/latent_widen.h"

#include <stdint.h>

/* Computed anew at each call, which saves a register. */
__device__ __forceinline__ uint32_t fa_sm90_latent_group(void)
{
	return __shfl_sync(~0u, fa_thread_index() / 128, 0);
}

/* ---- the ends of a segment */

/* Called by all consumers. */
template <class C>
__device__ __forceinline__ void fa_sm90_latent_begin(const struct fa_cuda_paged_attention &args,
                                                     const fa_sm90_latent_segment<C> &segment,
                                                     char *shared_memory)
{
	/* Four threads load a row, all of it at once. */
	constexpr int each = C::DIM / 8 / 4;
	const uint32_t shared = fa_shared_address(shared_memory);
	const uint32_t row = threadIdx.x / 4, t = threadIdx.x % 4;
	const char *const from = fa_paged_q_row<C>(args, segment, row);
	uint4 values[each];

	static_assert(C::JOINED == 4 * C::ROWS && C::DIM % 32 == 0, "rows are whole");
#pragma unroll
	for (int i = 0; i < each; i++)
		values[i] = from ? *(const uint4 *)(from + (4 * i + t) * 16)
		                 : make_uint4(0, 0, 0, 0);
#pragma unroll
	for (int i = 0; i < each; i++)
		fa_st_shared_v4(shared + C::Q_AT + i / 2 * C::COLUMN + row * 128 +
		                        ((i % 2 * 4 + t) ^ row % 8) * 16,
		                values[i]);
	if (threadIdx.x < C::ROWS)
		((struct fa_paged_row *)(shared_memory + C::ROWS_INFO))[threadIdx.x] =
			fa_paged_row_of<C>(args, segment, threadIdx.x);
	fa_proxy_fence_shared();
	C::join(); /* Q and the rows' info are written */
}

template <class C>
__device__ __forceinline__ void
fa_sm90_latent_end(const struct fa_cuda_paged_attention &args,
                   const fa_sm90_latent_segment<C> &segment, uint32_t shared,
                   struct fa_sm90_latent_rows &rows, const fa_sm90_latent_out<C> &out)
{
	const uint32_t t = threadIdx.x % 4, first = fa_sm90_latent_row();
	const uint32_t group = fa_sm90_latent_group();
	const uint32_t there = (uint32_t)segment.own_rows(args);
	const uint32_t column = group * (C::DIM_V / 2) + 2 * t;
	constexpr int quads = C::QUARTER_V / 8;

#pragma unroll
	for (int r = 0; r < 2; r++) {
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 1);
		rows.sum[r] += __shfl_xor_sync(~0u, rows.sum[r], 2);
		if (t == 0)
			fa_st_shared(shared + C::SUMS + (group * C::ROWS + first + 8 * r) * 4,
			             __float_as_uint(rows.sum[r]));
	}
	C::join(); /* sums are written; Q and the rows' info are free */
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const uint32_t row = first + 8 * r;
		const float sum = rows.sum[r] +
		                  __uint_as_float(fa_ld_shared(shared + C::SUMS +
		                                               ((group ^ 1) * C::ROWS + row) * 4));

		if (row >= there)
			continue;
		if (segment.whole) {
			const struct fa_paged_out_row target = fa_paged_out_row_of<C>(args, segment,
			                                                              row);
			const float factor = fa_paged_factor(
				args.attention, target.head, -rows.offset[r], sum,
				group == 0 && t == 0 ? target.lse : NULL);

#pragma unroll
			for (int j = 0; j < C::DIM_V / 16; j++) {
				const float *const of = &out[j / quads][j % quads * 4 + r * 2];

				*(uint32_t *)(target.out + (column + 8 * j) * C::BYTES) =
					fa_pack<typename C::T>(of[0] * factor, of[1] * factor);
			}
		} else {
			const uint32_t at = fa_sm90_latent_partial_row<C>(segment, segment.team,
			                                                  !segment.first) +
			                    row;
			float *const to = args.partials + (uint64_t)at * C::DIM_V + column;

#pragma unroll
			for (int j = 0; j < C::DIM_V / 16; j++) {
				const float *const of = &out[j / quads][j % quads * 4 + r * 2];

				*(float2 *)(to + 8 * j) = make_float2(of[0], of[1]);
			}
			if (group == 0 && t == 0)
				*(float2 *)(args.partial_sums +
				            at * 2) = make_float2(-rows.offset[r], sum);
		}
	}
	C::join(); /* partial results are written; SUMS is free */
	if (!segment.whole)
		fa_sm90_latent_join<C>(args, segment, shared, there);
}

/* ---- a group's tiles */

/* What a group has of the segment. */
template <class C> struct fa_sm90_latent_state {
	uint32_t shared;
	uint32_t parity[2]; /* of the stages */
	struct fa_sm90_latent_rows rows;
	fa_sm90_latent_out<C> out;

	__device__ __forceinline__ void wait(uint32_t stage, uint32_t quarter) const
	{
		fa_mbarrier_wait(shared + C::full(stage, quarter), parity[stage]);
	}

	__device__ __forceinline__ void release(uint32_t stage, uint32_t quarter) const
	{
		if (threadIdx.x % 32 == 0)
			fa_mbarrier_arrive(shared + C::empty(stage, quarter));
	}

	__device__ __forceinline__ uint32_t tile(uint32_t stage) const
	{
		return shared + C::K_AT + stage * C::TILE_BYTES;
	}

	/* Issues S = Q K^T of a stage's tile, as its quarters arrive. */
	__device__ __forceinline__ void issue_dots(float (&dots)[C::KEYS / 2], uint32_t stage)
	{
		const uint64_t a = fa_wgmma_operand(shared + C::Q_AT, 16);
		const uint64_t b = fa_wgmma_operand(tile(stage), 16);

#pragma unroll
		for (int i = 0; i < C::DIM / 16; i++) {
			/* Quarters are taken in the order of their loads. */
			constexpr int steps = C::QUARTER_COLUMNS * 4, last = C::QUARTERS - 1;
			const int nth = i / steps < last ? i / steps : last;
			const int d = nth == 1 ? i + steps : nth == 2 ? i - steps : i;

			if (i == nth * steps) {
				wait(stage, C::quarter(nth));
				/* Also orders accesses of registers by the wait's loop. */
				fa_wgmma_fence();
			}
			fa_wgmma<typename C::T, C::KEYS>::dots(
				dots, fa_wgmma_advance(a, d / 4 * C::COLUMN + d % 4 * 32),
				fa_wgmma_advance(b, d / 4 * C::COLUMN + d % 4 * 32), i > 0);
		}
		fa_wgmma_commit();
	}

	__device__ __forceinline__ uint64_t v_operand(uint32_t stage, uint32_t quarter) const
	{
		return fa_wgmma_operand(tile(stage) + quarter * C::QUARTER_BYTES, C::COLUMN);
	}

	/* Issues O += P V with the group's own P, a wgmma group per quarter of V. */
	__device__ __forceinline__ void issue_own(const uint32_t (&p)[C::KEYS / 16][4],
	                                          uint32_t stage, uint32_t group)
	{
#pragma unroll
		for (uint32_t half = 0; half < 2; half++) {
			fa_wgmma_fence();
#pragma unroll
			for (int k = 0; k < C::KEYS / 16; k++)
				fa_wgmma<typename C::T, C::QUARTER_V>::add(
					out[half], p[k],
					fa_wgmma_advance(v_operand(stage, 2 * group + half),
				                         k * 16 * 128));
			fa_wgmma_commit();
		}
	}

	/* The same with the other group's P. */
	__device__ __forceinline__ void issue_other(uint32_t stage, uint32_t group)
	{
		const uint64_t a = fa_wgmma_operand(shared + C::P_AT + stage * C::TILE_BYTES, 16);

#pragma unroll
		for (uint32_t half = 0; half < 2; half++) {
			fa_wgmma_fence();
#pragma unroll
			for (int k = 0; k < C::KEYS / 16; k++)
				fa_wgmma<typename C::T, C::QUARTER_V>::add_shared(
					out[half], fa_wgmma_advance(a, k * 32),
					fa_wgmma_advance(v_operand(stage, 2 * group + half),
				                         k * 16 * 128));
			fa_wgmma_commit();
		}
	}

	/* Waits for the products of both quarters, the last that were issued, and releases V. */
	__device__ __forceinline__ void finish(uint32_t stage, uint32_t group)
	{
		fa_wgmma_wait<1>();
		fa_wgmma_hold(out[0]);
		release(stage, 2 * group);
		fa_wgmma_wait<0>();
		fa_wgmma_hold(out[1]);
		release(stage, 2 * group + 1);
	}
};

template <class C>
__device__ __forceinline__ void fa_sm90_latent_first_group(
	fa_sm90_latent_state<C> &state, const struct fa_cuda_paged_attention &args,
	const fa_sm90_latent_segment<C> &segment, const struct fa_paged_unmasked &clear)
{
	const float factor = args.attention.scale_log2;
	const int32_t end = segment.end;

	const auto hides = [&](int32_t key) {
		return key < clear.begin || key + C::KEYS > clear.end;
	};

#pragma unroll 1
	for (int32_t key = segment.begin; key < end; key += 2 * C::KEYS) {
		const bool has_second = key + C::KEYS < end;
		float dots[C::KEYS / 2], scale[2];
		uint32_t p[C::KEYS / 16][4];

		state.issue_dots(dots, 0);
		fa_wgmma_wait<0>();
		fa_wgmma_hold(dots);
		if (has_second)
			fa_barrier_arrive(C::DOTS_DONE, C::JOINED);
		if (hides(key))
			fa_sm90_latent_mask<C>(dots, state.shared + C::ROWS_INFO, key);

		const bool raised = fa_sm90_latent_raise<C>(state.rows, dots, factor, scale);

		fa_sm90_latent_exponentials<C>(state.rows, dots, factor, p);
		fa_sm90_latent_publish<C>(state.shared, 0, state.rows, p);
		if (raised)
			fa_sm90_latent_rescale<C>(state.out, scale);
		if (hides(key))
			fa_sm90_latent_clean_v<C>(state.out, state.shared, 0, 0, key, segment.item);
		state.issue_own(p, 0, 0);
		state.finish(0, 0);
		if (has_second) {
			const bool moved = fa_sm90_latent_adopt<C>(state.shared, 1, state.rows,
			                                           scale);

			state.wait(1, 0);
			state.wait(1, 1);
			if (moved)
				fa_sm90_latent_rescale<C>(state.out, scale);
			if (hides(key + C::KEYS))
				fa_sm90_latent_clean_v<C>(state.out, state.shared, 1, 0,
				                          key + C::KEYS, segment.item);
			state.issue_other(1, 0);
			state.finish(1, 0);
			state.release(1, C::QUARTERS - 1);
			state.parity[1] ^= 1;
		}
		state.parity[0] ^= 1;
	}
}

template <class C>
__device__ __forceinline__ void fa_sm90_latent_second_group(
	fa_sm90_latent_state<C> &state, const struct fa_cuda_paged_attention &args,
	const fa_sm90_latent_segment<C> &segment, const struct fa_paged_unmasked &clear)
{
	const float factor = args.attention.scale_log2;
	const int32_t end = segment.end;

	const auto hides = [&](int32_t key) {
		return key < clear.begin || key + C::KEYS > clear.end;
	};
	const auto first_tile = [&](int32_t key) {
		float scale[2];
		const bool moved = fa_sm90_latent_adopt<C>(state.shared, 0, state.rows, scale);

		state.wait(0, 2);
		state.wait(0, 3);
		if (moved)
			fa_sm90_latent_rescale<C>(state.out, scale);
		if (hides(key))
			fa_sm90_latent_clean_v<C>(state.out, state.shared, 0, 1, key, segment.item);
		state.issue_other(0, 1);
	};

#pragma unroll 1
	for (int32_t key = segment.begin; key < end; key += 2 * C::KEYS) {
		const int32_t second = key + C::KEYS;

		if (second < end) {
			float dots[C::KEYS / 2], scale[2];
			uint32_t p[C::KEYS / 16][4];

			/* Exponentials of the two groups then take turns. */
			fa_barrier_sync(C::DOTS_DONE, C::JOINED);
			state.issue_dots(dots, 1);
			first_tile(key);
			fa_wgmma_wait<2>();
			fa_wgmma_hold(dots);
			if (hides(second))
				fa_sm90_latent_mask<C>(dots, state.shared + C::ROWS_INFO, second);

			const bool raised = fa_sm90_latent_raise<C>(state.rows, dots, factor,
			                                            scale);

			fa_sm90_latent_exponentials<C>(state.rows, dots, factor, p);
			fa_sm90_latent_publish<C>(state.shared, 1, state.rows, p);
			state.finish(0, 1);
			if (raised)
				fa_sm90_latent_rescale<C>(state.out, scale);
			if (hides(second))
				fa_sm90_latent_clean_v<C>(state.out, state.shared, 1, 1, second,
				                          segment.item);
			state.issue_own(p, 1, 1);
			state.finish(1, 1);
			state.parity[1] ^= 1;
		} else {
			first_tile(key);
			state.finish(0, 1);
		}
		state.parity[0] ^= 1;
	}
}

template <class C>
__device__ __forceinline__ void fa_sm90_latent_compute(const struct fa_cuda_paged_attention &args,
                                                       char *shared_memory)
{
	const uint32_t shared = fa_shared_address(shared_memory);
	fa_sm90_latent_segment<C> *const walk = (fa_sm90_latent_segment<C> *)(shared_memory +
	                                                                      C::WALK);
	fa_sm90_latent_segment<C> segment;
	fa_sm90_latent_state<C> state;

	segment.start_team(args);
	fa_await_launch_ahead();
	state.shared = shared;
	state.parity[0] = state.parity[1] = 0;
	do {
		if (segment.own_rows(args) <= 0)
			continue;
		/* Codes' producers leave no registers for it. */
		if constexpr (C::CODES)
			if (threadIdx.x == 0)
				*walk = segment;
		fa_sm90_latent_begin<C>(args, segment, shared_memory);
		state.rows.reset();
#pragma unroll
		for (int half = 0; half < 2; half++)
#pragma unroll
			for (int i = 0; i < C::QUARTER_V / 2; i++)
				state.out[half][i] = 0;

		const struct fa_paged_unmasked clear = fa_paged_unmasked_of<C>(
			args, segment.item, shared + C::ROWS_INFO);

		if (fa_sm90_latent_group() == 0)
			fa_sm90_latent_first_group<C>(state, args, segment, clear);
		else
			fa_sm90_latent_second_group<C>(state, args, segment, clear);
		if constexpr (C::CODES)
			segment = *walk;
		fa_sm90_latent_end<C>(args, segment, shared, state.rows, state.out);
	} while (segment.next_of_team(args));
	/* The producer may have exited. */
	fa_done_behind(args.attention.done, 0, C::JOINED);
}

/* @maps: NULL if pages hold codes. */
template <class C>
__device__ __forceinline__ void fa_sm90_latent_decode(const struct fa_cuda_paged_attention &args,
                                                      const struct fa_cuda_maps *maps)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const uint32_t shared = fa_shared_address(shared_memory);

	if (threadIdx.x == 0) {
		for (uint32_t stage = 0; stage < 2; stage++)
			for (uint32_t quarter = 0; quarter < C::QUARTERS; quarter++) {
				fa_mbarrier_init(shared + C::full(stage, quarter), C::PRODUCERS);
				fa_mbarrier_init(shared + C::empty(stage, quarter),
				                 C::releases(stage, quarter));
			}
		fa_mbarrier_init_fence();
		if constexpr (!C::CODES)
			fa_tma_prefetch_map(&maps->maps[FA_CUDA_MAP_K]);
	}
	__syncthreads();
	if (fa_sm90_latent_group() == 2) {
		fa_setmaxnreg_dec<C::PRODUCER_REGISTERS>();
		if constexpr (C::CODES)
			fa_sm90_latent_widen<C>(args, shared_memory);
		else if (threadIdx.x < C::JOINED + 32)
			fa_sm90_latent_load<C>(args, *maps, shared);
	} else {
		fa_setmaxnreg_inc<C::CONSUMER_REGISTERS>();
		fa_sm90_latent_compute<C>(args, shared_memory);
	}
}
