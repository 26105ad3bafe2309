/*
 * Forward attention on wgmma, for fp16 and bf16. A block of threads has one
 * warpgroup that loads (load.h) and GROUPS that compute, 64 query rows each, and computes
 * one block of rows after another: while O of one leaves, Q, K and V of the next come.
 *
 * Keys are walked from the last tile to the first. A group issues the dot products of a
 * tile and, behind them, the product of V with the exponentials of the tile before; while
 * the second runs it computes the exponentials of the first.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/proxy.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/dense.h"
#include "kernels/cuda/sm90/load.h"
#include "kernels/cuda/sm90/redo.h"
#include "kernels/cuda/sm90/rich.h"
#include "kernels/cuda/sm90/slope.h"
#include "kernels/cuda/sm90/softmax.h"
#include "kernels/cuda/sm90/span.h"
#include "kernels/cuda/sm90/store.h"
#include "kernels/cuda/sm90/yield.h"

#include <stdint.h>

/* Issues dots = Q K^T. @q: the group's rows. With ALiBi by products, unless @side is 0, that: see
 * slope.h and fa_sm90_tilt(). */
template <class C>
__device__ __forceinline__ void fa_sm90_issue_dots(fa_sm90_dots<C> &dots, uint32_t q, uint32_t k,
                                                   uint32_t shared, uint32_t group, int32_t side)
{
	const uint64_t a = fa_wgmma_operand(q, 16), b = fa_wgmma_operand(k, 16);

	const auto dot = [&](void) {
#pragma unroll
		for (int d = 0; d < C::DIM / 16; d++)
			fa_wgmma<typename C::T, C::KEYS>::dots(
				dots, fa_wgmma_advance(a, d / 4 * C::Q_COLUMN + d % 4 * 32),
				fa_wgmma_advance(b, d / 4 * C::KV_COLUMN + d % 4 * 32), d > 0);
	};

	/* Each way on its own, fence and all: where they meet within a group of products the
	 * compiler has it end in one that is nothing. */
	if (C::SLOPES && side != 0) {
		fa_wgmma_fence();
		dot();
		fa_wgmma<typename C::T, C::KEYS>::dots(
			dots, fa_wgmma_operand(shared + C::SLOPES_AT + group * 32, 16),
			fa_wgmma_operand(shared + C::PLACES_AT + (side < 0 ? 32 : 0), 16), true);
		fa_wgmma_commit();
	} else {
		fa_wgmma_fence();
		dot();
		fa_wgmma_commit();
	}
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

/* Zeroes rows [@row, @end) of V's tile: what lies outside of a sequence is another's or
 * nobody's, and 0 times NaN is NaN. Each group does it before its own products. Of a column
 * that is half used all of it: swizzled, its half lies all over. */
template <class C>
__device__ __forceinline__ void fa_sm90_clear(uint32_t v, int32_t row, int32_t end, uint32_t group)
{
	constexpr int chunks = C::COLUMNS_V * 8;

	/* Where registers are few it is asked for anew, so that nothing of this is kept. */
	const uint32_t thread = C::PAGED && C::RICH
	                                ? __shfl_sync(~0u, threadIdx.x, threadIdx.x % 32)
	                                : threadIdx.x;

	for (int32_t i = row * chunks + thread % 128; i < end * chunks; i += 128)
		fa_st_shared_v4(v + i % chunks / 8 * C::KV_COLUMN + i / chunks * C::COLUMN_BYTES +
		                        i % 8 * 16,
		                make_uint4(0, 0, 0, 0));
	fa_proxy_fence_shared();
	fa_barrier_sync(C::group_barrier(group), 128);
}

template <class C>
__device__ __forceinline__ void fa_sm90_compute(const typename C::ARGS &all, uint32_t shared,
                                                uint32_t number)
{
	/* Asked for again where it is seldom used and registers are few. */
	const uint32_t group = C::PAGED && C::APART ? __shfl_sync(~0u, threadIdx.x / 128, 0) - 1
	                                            : number;
	using SOURCE = typename C::SOURCE;
	const struct fa_cuda_attention &args = SOURCE::attention(all);
	constexpr int steps = C::KEYS / 16;
	const uint32_t lane = threadIdx.x % 32;
	const int32_t thread_row = C::BAND ? threadIdx.x % 128 / 32 * 16 + lane / 4 : 0;
	/* What a logit is multiplied by in the exponent; > 0. */
	const float factor = C::CAP || (C::RICH && !fa_sm90_linear(args)) ? 1 : args.scale_log2;
	typename SOURCE::template WALK<C> walk(all);
	struct fa_sm90_place<C::STAGES> k, v;
	struct fa_sm90_place<C::Q_SLOTS> q;
	/* The block whose logits these are, the one after, and the one before as long as its
	 * O has not left. */
	typename SOURCE::BLOCK block, next_block, done_block;
	struct fa_sm90_sums sums, done_sums;
	bool done = false, broken = false, k_there = false;
	fa_sm90_out_rows<C> out;
	fa_sm90_dots<C> dots;
	fa_sm90_p<C> p;
	float scale[2];
	int32_t rest;  /* the end of the sequence, from where the group's first row stands */
	int32_t first; /* the first key that is not hidden, likewise; if PAGED */
	int32_t key;   /* the first of the tile */
	int32_t left;  /* tiles of the block after this one */
	int32_t next_rest, next_first, next_key, next_left; /* -1: there is none */
	int32_t next_skip = 0; /* tiles before the next that this group leaves out */
	int32_t after = 0;     /* of those, the ones of the block that is ahead of them */
	int32_t tail = 0;      /* WINDOW: those that it leaves out at the end of this block */
	/* ALiBi's slope, in units of what is multiplied by the factor; what of it is a row's. */
	float tilt = 0, next_tilt = 0, shift[2] = { 0, 0 };
	/* Whether it is added by products, where that can be; and on which side of its rows the tile
	 * is where it was, 0 where it was not: see fa_sm90_tilt(). */
	bool by_products = false;
	int32_t side = 0;
	bool fresh; /* a row has no maximum yet */
	bool resumed = false;
	uint32_t stop = 0; /* there is no tile, and this block of threads ends: fa_sm90_stop_kind */

	const auto arrive = [&](uint32_t barrier) {
		if (lane == 0)
			fa_mbarrier_arrive(barrier);
	};
	const auto look_ahead = [&](void) {
		typename SOURCE::WORK work;

		next_left = -1;
		next_skip = C::WINDOW ? 0 : after;
#pragma unroll 1
		while (next_left < 0 && walk.next(all, next_block, work)) {
			const struct fa_sm90_span span = fa_sm90_span_get<C>(args, work);
			const int32_t row = fa_sm90_group_row<C>(work.row, group, walk.turned);
			const struct fa_sm90_own own = fa_sm90_own_get<C>(args, work, span, row);
			const int32_t origin = C::BAND ? row + work.diagonal : 0;

			SOURCE::keep(next_block, work, row);
			next_rest = work.n_k - origin;
			next_first = SOURCE::first(work) - origin;
			next_key = own.span.last * C::KEYS - origin;
			next_left = own.span.count - 1;
			next_skip += own.before;
			after = own.after;
			if (C::RICH && !C::CAP)
				next_tilt = fa_sm90_slope(args, work.head) * fa_rcp(factor);
			/* Two ways to the same: ALiBi at d64 has the better loop with the first, by 4.8 %,
			 * what is plain with the second. */
			if (span.count == 0) {
				if constexpr (C::SLOPES) {
					work.row = row;
					fa_sm90_finish_empty<C>(args, work);
				} else {
					fa_sm90_finish_empty<C>(args,
					                        SOURCE::work_of(all, next_block));
				}
			}
		}
	};
	const auto begin = [&](void) {
		rest = next_rest;
		first = next_first;
		tilt = next_tilt;
		key = next_key;
		left = next_left;
		if (C::WINDOW)
			tail = after;
		if constexpr (C::SLOPES) {
			by_products = fa_sm90_slope_fits(args, tilt);
			if (by_products)
				fa_sm90_slope_rows<C>(shared, group, tilt);
		}
	};
	/* As fa_sm90_tilt() has it. */
	const auto side_of_tile = [&](void) {
		return args.window_right <= 0 || key + C::KEYS <= 1 ? 1
		       : key >= C::GROUP_ROWS - 1                   ? -1
		                                                    : 0;
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
	/* Which rows of the tile are its sequence's: the end in the high half, the first in the
	 * low one. */
	constexpr uint32_t ALL_ROWS = (uint32_t)C::KEYS << 16;
	const auto rows_of_tile = [&](void) {
		if (!SOURCE::tails(all))
			return ALL_ROWS;
		return (uint32_t)min(rest - key, C::KEYS) << 16 |
		       (C::PAGED ? (uint32_t)max(first - key, 0) : 0);
	};
	/* Waits for V and, where a sequence ends or begins within its tile and other rows follow
	 * or precede, clears those. */
	const auto wait_v = [&](uint32_t rows) {
		fa_mbarrier_wait(shared + C::V_FULL + 8 * v.stage, v.parity);
		if (rows == ALL_ROWS)
			return;
		if (rows >> 16 < C::KEYS)
			fa_sm90_clear<C>(v_tile(), (int32_t)(rows >> 16), C::KEYS, group);
		if (C::PAGED && rows % 65536 > 0)
			fa_sm90_clear<C>(v_tile(), 0, (int32_t)(rows % 65536), group);
	};
	const auto release_k = [&](void) {
		arrive(shared + C::K_EMPTY + 8 * k.stage);
		k.advance();
	};
	const auto release_v = [&](void) {
		arrive(shared + C::V_EMPTY + 8 * v.stage);
		v.advance();
	};
	/* Releases tiles that this group does not look at: when they have come, or it might
	 * be taken for having released others that were there before. */
	const auto skip_k = [&](int32_t count) {
#pragma unroll 1
		for (; C::SKIPS && count > 0; count--) {
			wait_k();
			release_k();
		}
	};
	const auto skip_v = [&](int32_t count) {
#pragma unroll 1
		for (; C::SKIPS && count > 0; count--) {
			fa_mbarrier_wait(shared + C::V_FULL + 8 * v.stage, v.parity);
			release_v();
		}
	};
	const auto release_q = [&](void) {
		if (left == 0) {
			arrive(shared + C::Q_EMPTY + 8 * q.stage);
			q.advance(C::GROUPS);
		}
	};
	/* Whether rows may not see all of the tile, or it has others' rows. */
	const auto partly_seen = [&](void) {
		return key + C::KEYS > rest || (C::PAGED && key < first) ||
		       (C::BAND && (key + C::KEYS - 1 > args.window_right ||
		                    key < C::GROUP_ROWS - 1 - args.window_left));
	};
	/* Returns that. */
	const auto mask = [&](void) {
		if constexpr (C::RICH) {
			if (side == 0) {
				const float base[2] = {
					C::LOWERS && !sums.unset(0) ? sums.offset[0] : 0,
					C::LOWERS && !sums.unset(1) ? sums.offset[1] : 0
				};

				fa_sm90_logits<C>(dots, base, args);
			}
		}
		if (partly_seen()) {
			fa_sm90_mask<C>(dots, args, key + (int32_t)(lane % 4 * 2) - thread_row,
			                first - thread_row, rest - thread_row);
			return true;
		}
		return false;
	};
	const auto lean = [&](void) {
		if (C::SLOPES && side != 0)
			shift[0] = shift[1] = tilt * factor * (float)(side * key);
		else if (C::RICH && !C::CAP && args.alibi_slopes)
			fa_sm90_tilt(dots, tilt, factor, key + (int32_t)(lane % 4 * 2) - thread_row,
			             side_of_tile(), shift);
	};
	const auto any_fresh = [&](void) {
		return __any_sync(~0u, sums.unset(0) || sums.unset(1)) != 0;
	};
	const auto raise = [&](void) {
		const float along = side > 0 ? tilt : side < 0 ? -tilt : 0;
		float lift[2] = { shift[0], shift[1] };
		const bool unset[2] = { sums.unset(0), sums.unset(1) };
		bool raised;

		if (C::RICH && !C::CAP && C::LAZY)
#pragma unroll
			for (int r = 0; r < 2; r++) {
				const int32_t row = thread_row + r * 8;

				lift[r] = -tilt * factor *
				          (float)max(0, max(first - row, row - rest + 1));
				if (C::SLOPES)
					lift[r] -= along * factor *
					           (float)((int32_t)(lane % 4 * 2) - row);
			}
		raised = fa_sm90_raise<C>(sums, dots, factor, lift, along, scale);
		/* Others have had theirs with their logits. */
		if (C::LOWERS) {
			const float add[2] = { unset[0] ? sums.offset[0] : 0,
				               unset[1] ? sums.offset[1] : 0 };

			fa_sm90_add<C>(dots, add);
		}
		fresh = !C::LAZY || any_fresh();
		return raised;
	};
	/* Uniform registers for barriers' numbers are not left to those who look up pages, and
	 * numbers are not to be found only where others wait for their turn. */
	const uint32_t taker = C::ASKS_MASK ? threadIdx.x / 128 - 1 : group;
	const auto turn_wait = [&](void) { fa_barrier_sync(C::turn_barrier(taker), 256); };
	const auto turn_pass = [&](void) {
		fa_barrier_arrive(C::turn_barrier((taker + 1) % C::GROUPS), 256);
	};
	const auto zero = [&](void) {
#pragma unroll
		for (int i = 0; i < C::DIM_V / 2; i++)
			out[i] = 0;
	};

	/* A block of threads that goes on passes over what it has done before. */
	uint32_t passed = C::YIELDS ? fa_ld_shared(shared + C::RECORD + 4) : 0;
#pragma unroll 1
	do
		look_ahead();
	while (passed-- > 0);
	if (next_left < 0)
		return;
	if (!C::APART && group == C::GROUPS - 1)
		turn_pass();
	q.advance(group);
	/* Once, but for groups that leave out more tiles between two blocks than there is room
	 * for: they begin anew. */
#pragma unroll 1
	do {
		for (; C::APART && next_skip > 0; next_skip--) {
			skip_k(1);
			skip_v(1);
		}
		begin();
		block = next_block;
		sums.reset();
		zero();
		if constexpr (C::WINDOW) {
			skip_k(next_skip);
			skip_v(next_skip);
			if (C::YIELDS)
				broken = fa_ld_shared(shared + C::RECORD + 12) &
				         FA_CUDA_YIELD_BROKEN;
		}
		if constexpr (C::YIELDS_INSIDE) {
			const int32_t rest_tiles = (int32_t)fa_ld_shared(shared + C::RECORD + 8);
			const uint32_t slot = fa_ld_shared(shared + C::RECORD + 12);

			broken = slot & FA_CUDA_YIELD_BROKEN;
			resumed = rest_tiles > 0;
			if (resumed) {
				key -= (left + 1 - rest_tiles) * C::KEYS;
				left = rest_tiles - 1;
				fa_sm90_load_state<C>(args.yield, slot % FA_CUDA_YIELD_BROKEN,
				                      group, out, sums);
			}
		}
		wait_q();
		wait_k();
		if (C::SLOPES && by_products)
			side = side_of_tile();
		fa_sm90_issue_dots<C>(dots, q_tile(), k_tile(), shared, group, side);
		look_ahead();
		fa_wgmma_wait<0>();
		fa_wgmma_hold(dots);
		release_k();
		release_q();
		scale[0] = scale[1] = 1;
		if (C::YIELDS_INSIDE && C::LAZY && resumed)
			fa_sm90_lower(sums, scale);
		mask();
		if (!C::LAZY)
			lean();
		raise();
		if (C::LAZY)
			lean();
		fa_sm90_exponentials<C, 0, steps>(sums, dots, factor, shift);
		fa_sm90_round<C>(p, dots);
		if (C::YIELDS_INSIDE && resumed)
			fa_sm90_rescale<C>(out, scale);

		/* Of the tile whose logits there are: its V comes with the next. */
		uint32_t rows = rows_of_tile();

#pragma unroll 1
		for (;;) {
			const bool border = left == 0;
			bool raised = false;
			int32_t skip = 0;

			scale[0] = scale[1] = 1;
			if (C::WINDOW && border && tail > 0) {
				skip_k(tail);
				k_there = false;
			}
			if constexpr (C::YIELDS) {
				/* One way out of the loop: with another the compiler puts the
				 * exponentials where turns do not overlap, which takes 15 % at
				 * d64. */
				if (C::STOP_KNOWN == FA_SM90_STOP_ASKED || !k_there) {
					if (!k_there)
						wait_k();
					stop = fa_ld_shared(shared + C::STOP + 4 * k.stage);
				}
				if (stop)
					break;
			}
			if (border) {
				if (!C::YIELDS &&
				    (next_left < 0 || (C::APART && next_skip >= C::STAGES)))
					break;
				skip = C::WINDOW ? tail + next_skip : next_skip;
				begin();
				skip_k(next_skip);
				if (C::WINDOW && next_skip > 0)
					wait_k();
				k_there = k_there && (!C::APART || skip == 0);
				wait_q();
			} else {
				key -= C::KEYS;
				left--;
			}
			if (!C::YIELDS && !k_there)
				wait_k();
			if (C::TURNS == FA_SM90_PRODUCTS)
				turn_wait();
			if (C::SLOPES)
				side = by_products ? side_of_tile() : 0;
			fa_sm90_issue_dots<C>(dots, q_tile(), k_tile(), shared, group, side);
			if (C::TURNS == FA_SM90_PRODUCTS)
				turn_pass();
			/* In the shadow of the dot products. */
			if (done) {
				broken |= fa_sm90_finish<C>(out, done_sums, all, done_block);
				zero();
			}
			wait_v(rows);
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
			if (!C::ASKS_MASK)
				rows = rows_of_tile();
			fa_wgmma_wait<1>();
			fa_wgmma_hold(dots);
			release_k();
			bool early = false; /* half of the exponentials are there */

			if (C::LOWERS)
				early = !partly_seen() && !(C::FEW_REGISTERS ? any_fresh() : fresh);
			if (early) {
				fa_sm90_capped<C>(sums, dots, args);
				if (C::ASKS_MASK)
					rows = ALL_ROWS;
			} else {
				const bool masked = mask();

				if (C::ASKS_MASK)
					rows = masked ? rows_of_tile() : ALL_ROWS;
				if (!C::LAZY)
					lean();
				if (C::FEW_REGISTERS && C::LAZY ? any_fresh() : fresh)
					raised |= raise();
				if (C::LAZY)
					lean();
			}
			if (C::TURNS == FA_SM90_EXPONENTIALS && !C::TURN_LATE)
				turn_wait();
			/* By the time that some exponentials are there, so is O; with P free, all can
			 * be rounded in the shadow of the others. The branch in between keeps the
			 * compiler from waiting sooner. */
			if (!early)
				fa_sm90_exponentials<C, 0, steps / 2>(sums, dots, factor, shift);
			release_q();
			if (C::TURNS == FA_SM90_EXPONENTIALS && C::TURN_LATE)
				turn_wait();
			fa_wgmma_wait<0>();
			fa_wgmma_hold(out);
			release_v();
			skip_v(skip);
			k_there = (!C::FEW_REGISTERS || C::LAZY) &&
			          fa_mbarrier_test(shared + C::K_FULL + 8 * k.stage, k.parity);
			if (C::STOP_KNOWN == FA_SM90_STOP_BEFORE && k_there)
				stop = fa_ld_shared(shared + C::STOP + 4 * k.stage);
			if constexpr (C::TURNS == FA_SM90_EXPONENTIALS) {
				/* While these are computed the next group finds out that it may. */
				fa_sm90_exponentials<C, steps / 2, C::TURN_STEPS>(sums, dots,
				                                                  factor, shift);
				turn_pass();
				fa_sm90_exponentials<C, C::TURN_STEPS, steps>(sums, dots, factor,
				                                              shift);
			} else {
				fa_sm90_exponentials<C, steps / 2, steps>(sums, dots, factor,
				                                          shift);
			}
			if (C::STOP_KNOWN == FA_SM90_STOP_BEHIND && k_there)
				stop = fa_ld_shared(shared + C::STOP + 4 * k.stage);
			fa_sm90_round<C>(p, dots);
			if (raised && !border)
				fa_sm90_rescale<C>(out, scale);
		}

		/* The last group has passed one turn more than it waited for. */
		if (!C::APART && group == 0)
			turn_wait();
		if (done) {
			broken |= fa_sm90_finish<C>(out, done_sums, all, done_block);
			zero();
			done = false;
		}
		wait_v(rows);
		fa_wgmma_fence();
		fa_sm90_issue_product<C>(out, p, v_tile());
		fa_wgmma_wait<0>();
		fa_wgmma_hold(out);
		if (C::SKIPS) {
			release_v();
			k_there = false;
		}
		if (C::WINDOW)
			skip_v(tail);
		if (C::YIELDS_INSIDE && stop == FA_SM90_STOPPED && left > 0)
			fa_sm90_save<C>(args.yield, fa_ld_shared(shared + C::SLOT), group, out,
			                sums);
		else
			broken |= fa_sm90_finish<C>(out, sums, all, block);
	} while (C::APART && next_left >= 0);
	for (; C::APART && next_skip > 0; next_skip--) {
		skip_k(1);
		skip_v(1);
	}
	if ((C::BAND || C::LAZY) && __any_sync(~0u, broken)) {
		if (C::YIELDS && stop == FA_SM90_STOPPED)
			fa_st_shared(shared + C::BROKEN, 1);
		else
			fa_sm90_redo<C>(all, group);
	}
}

template <class C>
__device__ __forceinline__ void fa_sm90_forward(const typename C::ARGS &args,
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
		if (C::YIELDS)
			fa_sm90_begin<C>(C::SOURCE::attention(args), shared);
	}
	if constexpr (C::SLOPES) {
		if (C::SOURCE::attention(args).alibi_slopes)
			fa_sm90_slope_places<C>(shared);
	}
	__syncthreads();
	if (C::YIELDS && fa_ld_shared(shared + C::ENDS))
		return;

	if (warpgroup == 0) {
		fa_registers_give<C::LOADER_REGISTERS>();
		if (threadIdx.x < (C::PAGED ? 32 * C::SOURCE::loaders(args) : 32))
			fa_sm90_load<C>(args, maps, shared);
	} else {
		fa_registers_take<C::GROUP_REGISTERS>();
		fa_sm90_compute<C>(args, shared, warpgroup - 1);
		if (C::YIELDS)
			fa_sm90_end<C>(C::SOURCE::attention(args), shared);
		else
			/* Those who load have stored nothing, and have too few registers for
			 * more. */
			fa_done_behind(C::SOURCE::attention(args).done, 128, C::GROUPS * 128);
	}
}
