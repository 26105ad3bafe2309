/*
 * Dense forward attention on wgmma, for fp16 and bf16. A block of threads has one
 * warpgroup that loads (load.h) and GROUPS that compute, 64 query rows each, and computes
 * one block of rows after another: while O of one leaves, Q, K and V of the next come.
 *
 * Keys are walked from the last tile to the first. A group issues the dot products of a
 * tile and, behind them, the product of V with the exponentials of the tile before; while
 * the second runs it computes the exponentials of the first.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/load.h"
#include "kernels/cuda/sm90/redo.h"
#include "kernels/cuda/sm90/softmax.h"
#include "kernels/cuda/sm90/span.h"
#include "kernels/cuda/sm90/store.h"

#include <stdint.h>

/* Issues dots = Q K^T. @q: the group's rows. */
template <class C>
__device__ __forceinline__ void fa_sm90_issue_dots(fa_sm90_dots<C> &dots, uint32_t q, uint32_t k)
{
	const uint64_t a = fa_wgmma_operand(q, 16), b = fa_wgmma_operand(k, 16);

#pragma unroll
	for (int d = 0; d < C::DIM / 16; d++)
		fa_wgmma<typename C::T, C::KEYS>::dots(
			dots, fa_wgmma_advance(a, d / 4 * C::Q_COLUMN + d % 4 * 32),
			fa_wgmma_advance(b, d / 4 * C::KV_COLUMN + d % 4 * 32), d > 0);
	fa_wgmma_commit();
}

/* Issues O += P V. */
template <class C>
__device__ __forceinline__ void fa_sm90_issue_product(fa_sm90_out_rows<C> &out,
                                                      const fa_sm90_p<C> &p, uint32_t v)
{
	const uint64_t b = fa_wgmma_operand(v, C::KV_COLUMN);

#pragma unroll
	for (int k = 0; k < C::KEYS / 16; k++)
		fa_wgmma<typename C::T, C::DIM_V>::add(
			out, p[k], fa_wgmma_advance(b, k * 16 * C::COLUMN_BYTES));
	fa_wgmma_commit();
}

/* Zeroes the rows of V's tile from @row on: what lies past a sequence's end is another's
 * or nobody's, and 0 times NaN is NaN. Each group does it before its own products. */
template <class C>
__device__ __forceinline__ void fa_sm90_clear(uint32_t v, int32_t row, uint32_t group)
{
	constexpr int chunks = C::DIM_V / 8;

	for (int32_t i = row * chunks + threadIdx.x % 128; i < C::KEYS * chunks; i += 128)
		fa_st_shared_v4(v + i % chunks / 8 * C::KV_COLUMN + i / chunks * C::COLUMN_BYTES +
		                        i % 8 * 16,
		                make_uint4(0, 0, 0, 0));
	fa_proxy_fence_shared();
	fa_barrier_sync(C::group_barrier(group), 128);
}

template <class C>
__device__ __forceinline__ void fa_sm90_compute(const struct fa_cuda_attention &args,
                                                uint32_t shared, uint32_t group)
{
	constexpr int steps = C::KEYS / 16;
	const uint32_t lane = threadIdx.x % 32;
	const int32_t thread_row = C::BAND ? threadIdx.x % 128 / 32 * 16 + lane / 4 : 0;
	const typename C::LOGITS logits(args, 0);
	const float factor = logits.factor();
	struct fa_sm90_walk<C> walk(args);
	struct fa_sm90_place<C::STAGES> k, v;
	struct fa_sm90_place<C::Q_SLOTS> q;
	/* The block whose logits these are, the one after, and the one before as long as its
	 * O has not left. */
	struct fa_sm90_block block, next_block, done_block;
	struct fa_sm90_sums sums, done_sums;
	bool done = false, broken = false, k_there = false;
	fa_sm90_out_rows<C> out;
	fa_sm90_dots<C> dots;
	fa_sm90_p<C> p;
	float scale[2];
	int32_t rest; /* the end of the sequence, from where the group's first row stands */
	int32_t key;  /* the first of the tile, likewise */
	int32_t left; /* tiles of the block after this one */
	int32_t next_rest, next_key, next_left; /* -1: there is none */
	bool fresh;                             /* a row has no maximum yet */

	const auto arrive = [&](uint32_t barrier) {
		if (lane == 0)
			fa_mbarrier_arrive(barrier);
	};
	const auto look_ahead = [&](void) {
		struct fa_work work;

		next_left = -1;
#pragma unroll 1
		while (next_left < 0 && walk.next(args, next_block, work)) {
			const struct fa_sm90_span span = fa_sm90_span_get<C>(args, work);
			const int32_t origin = C::BAND ? work.row + (int32_t)group * C::GROUP_ROWS +
			                                         work.diagonal
			                               : 0;

			next_rest = work.n_k - origin;
			next_key = span.last * C::KEYS - origin;
			next_left = span.count - 1;
			if (span.count == 0)
				fa_sm90_finish_empty<C>(args, work, group);
		}
	};
	const auto begin = [&](void) {
		rest = next_rest;
		key = next_key;
		left = next_left;
	};
	const auto k_tile = [&](void) { return shared + C::K_AT + k.stage * C::K_BYTES; };
	const auto v_tile = [&](void) { return shared + C::V_AT + v.stage * C::V_BYTES; };
	const auto q_tile = [&](void) { return shared + C::Q_AT + q.stage * C::Q_BYTES; };
	const auto wait_k = [&](void) {
		fa_mbarrier_wait(shared + C::K_FULL + 8 * k.stage, k.parity);
	};
	const auto wait_q = [&](void) {
		fa_mbarrier_wait(shared + C::Q_FULL + 8 * q.stage, q.parity);
	};
	/* Waits for V and, where a sequence ends within its tile and others follow, clears
	 * their rows. */
	const auto wait_v = [&](int32_t tail) {
		fa_mbarrier_wait(shared + C::V_FULL + 8 * v.stage, v.parity);
		if (tail < C::KEYS)
			fa_sm90_clear<C>(v_tile(), tail, group);
	};
	const auto tail_of_tile = [&](void) { return args.cu_seqlens_q ? rest - key : C::KEYS; };
	const auto release_k = [&](void) {
		arrive(shared + C::K_EMPTY + 8 * k.stage);
		k.advance();
	};
	const auto release_v = [&](void) {
		arrive(shared + C::V_EMPTY + 8 * v.stage);
		v.advance();
	};
	const auto release_q = [&](void) {
		if (left == 0) {
			arrive(shared + C::Q_EMPTY + 8 * q.stage);
			q.advance(C::GROUPS);
		}
	};
	const auto mask = [&](void) {
		if (key + C::KEYS > rest ||
		    (C::BAND && (key + C::KEYS - 1 > args.window_right ||
		                 key < C::GROUP_ROWS - 1 - args.window_left)))
			fa_sm90_mask<C>(dots, args, key + (int32_t)(lane % 4 * 2) - thread_row,
			                rest - thread_row);
	};
	const auto raise = [&](void) {
		const bool raised = fa_sm90_raise<C>(sums, dots, factor, scale);

		fresh = !C::LAZY || __any_sync(~0u, sums.unset(0) || sums.unset(1));
		return raised;
	};
	const auto turn_wait = [&](void) { fa_barrier_sync(C::turn_barrier(group), 256); };
	const auto turn_pass = [&](void) {
		fa_barrier_arrive(C::turn_barrier((group + 1) % C::GROUPS), 256);
	};
	const auto zero = [&](void) {
#pragma unroll
		for (int i = 0; i < C::DIM_V / 2; i++)
			out[i] = 0;
	};

	look_ahead();
	if (next_left < 0)
		return;
	if (group == C::GROUPS - 1)
		turn_pass();
	q.advance(group);
	begin();
	block = next_block;
	sums.reset();
	zero();
	wait_q();
	wait_k();
	fa_wgmma_fence();
	fa_sm90_issue_dots<C>(dots, q_tile(), k_tile());
	look_ahead();
	fa_wgmma_wait<0>();
	fa_wgmma_hold(dots);
	release_k();
	release_q();
	mask();
	scale[0] = scale[1] = 1;
	raise();
	fa_sm90_exponentials<C, 0, steps>(sums, dots, factor);
	fa_sm90_round<C>(p, dots);

#pragma unroll 1
	for (;;) {
		const int32_t tail = tail_of_tile();
		const bool border = left == 0;
		bool raised = false;

		scale[0] = scale[1] = 1;
		if (border) {
			if (next_left < 0)
				break;
			begin();
			wait_q();
		} else {
			key -= C::KEYS;
			left--;
		}
		if (!k_there)
			wait_k();
		if (C::TURNS == FA_SM90_PRODUCTS)
			turn_wait();
		fa_wgmma_fence();
		fa_sm90_issue_dots<C>(dots, q_tile(), k_tile());
		if (C::TURNS == FA_SM90_PRODUCTS)
			turn_pass();
		/* In the shadow of the dot products. */
		if (done) {
			broken |= fa_sm90_finish<C>(out, done_sums, args, done_block, group);
			zero();
		}
		wait_v(tail);
		fa_wgmma_fence();
		fa_sm90_issue_product<C>(out, p, v_tile());
		done = border;
		if (border) {
			done_block = block;
			done_sums = sums;
			block = next_block;
			sums.reset();
			fresh = true;
			look_ahead();
		} else if (C::LAZY) {
			raised = fa_sm90_lower(sums, scale);
		}
		fa_wgmma_wait<1>();
		fa_wgmma_hold(dots);
		release_k();
		mask();
		if (fresh)
			raised |= raise();
		if (C::TURNS == FA_SM90_EXPONENTIALS)
			turn_wait();
		/* By the time that some exponentials are there, so is O; with P free, all can
		 * be rounded in the shadow of the others. The branch in between keeps the
		 * compiler from waiting sooner. */
		fa_sm90_exponentials<C, 0, steps / 2>(sums, dots, factor);
		release_q();
		fa_wgmma_wait<0>();
		fa_wgmma_hold(out);
		release_v();
		k_there = fa_mbarrier_test(shared + C::K_FULL + 8 * k.stage, k.parity);
		if constexpr (C::TURNS == FA_SM90_EXPONENTIALS) {
			/* While these are computed the next group finds out that it may. */
			fa_sm90_exponentials<C, steps / 2, steps * 3 / 4>(sums, dots, factor);
			turn_pass();
			fa_sm90_exponentials<C, steps * 3 / 4, steps>(sums, dots, factor);
		} else {
			fa_sm90_exponentials<C, steps / 2, steps>(sums, dots, factor);
		}
		fa_sm90_round<C>(p, dots);
		if (raised && !border)
			fa_sm90_rescale<C>(out, scale);
	}

	/* The last group has passed one turn more than it waited for. */
	if (group == 0)
		turn_wait();
	if (done) {
		broken |= fa_sm90_finish<C>(out, done_sums, args, done_block, group);
		zero();
	}
	wait_v(tail_of_tile());
	fa_wgmma_fence();
	fa_sm90_issue_product<C>(out, p, v_tile());
	fa_wgmma_wait<0>();
	fa_wgmma_hold(out);
	broken |= fa_sm90_finish<C>(out, sums, args, block, group);
	if ((C::BAND || C::LAZY) && __any_sync(~0u, broken))
		fa_sm90_redo<C>(args, group);
}

template <class C>
__device__ __forceinline__ void fa_sm90_forward(const struct fa_cuda_attention &args,
                                                const struct fa_cuda_maps &maps)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const uint32_t shared = fa_shared_address(shared_memory);
	/* The same for all threads of a warp, and the compiler is to know it. */
	const uint32_t warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);

	if (threadIdx.x == 0) {
		for (int i = 0; i < C::Q_SLOTS; i++) {
			fa_mbarrier_init(shared + C::Q_FULL + 8 * i, 1);
			fa_mbarrier_init(shared + C::Q_EMPTY + 8 * i, 4);
		}
		for (int i = 0; i < C::STAGES; i++) {
			fa_mbarrier_init(shared + C::K_FULL + 8 * i, 1);
			fa_mbarrier_init(shared + C::V_FULL + 8 * i, 1);
			fa_mbarrier_init(shared + C::K_EMPTY + 8 * i, C::GROUPS * 4);
			fa_mbarrier_init(shared + C::V_EMPTY + 8 * i, C::GROUPS * 4);
		}
		fa_mbarrier_init_fence();
	}
	__syncthreads();

	if (warpgroup == 0) {
		fa_registers_give<C::LOADER_REGISTERS>();
		if (threadIdx.x < 32)
			fa_sm90_load<C>(args, maps, shared);
	} else {
		fa_registers_take<C::GROUP_REGISTERS>();
		fa_sm90_compute<C>(args, shared, warpgroup - 1);
	}
}
