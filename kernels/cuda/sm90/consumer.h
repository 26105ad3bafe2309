/*
 * Main loop of a consumer warpgroup. Tiles of keys go from the last to the first, but for
 * FIRST_TILE_FIRST. An iteration issues Q K^T of a tile and P V of the one before, and computes
 * exponentials while P V runs. A block's epilogue overlaps with the next block's first Q K^T.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/wgmma.h"
#include "kernels/cuda/sm90/alibi.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/epilogue.h"
#include "kernels/cuda/sm90/gemm.h"
#include "kernels/cuda/sm90/load.h"
#include "kernels/cuda/sm90/logits.h"
#include "kernels/cuda/sm90/masked_sight.h"
#include "kernels/cuda/sm90/overflow.h"
#include "kernels/cuda/sm90/recompute.h"
#include "kernels/cuda/sm90/softmax.h"
#include "kernels/cuda/sm90/tile_range.h"
#include "kernels/cuda/sm90/yield.h"

#include <stdint.h>

template <class C>
__device__ __forceinline__ void fa_sm90_compute(const typename C::ARGS &all, uint32_t shared,
                                                uint32_t number)
{
	/* Recomputed if registers are few. */
	const uint32_t group = C::PAGED && C::INDEPENDENT
	                               ? __shfl_sync(~0u, threadIdx.x / 128, 0) - 1
	                               : number;
	using SOURCE = typename C::SOURCE;
	const struct fa_cuda_attention &args = SOURCE::attention(all);
	constexpr int steps = C::KEYS / 16;
	const uint32_t lane = threadIdx.x % 32;
	const int32_t kept_thread_row = C::BAND ? threadIdx.x % 128 / 32 * 16 + lane / 4 : 0;
	/* Factor of logits in the exponent; > 0. */
	const float factor = C::SOFTCAP || (C::SCORE_MOD && !fa_sm90_is_linear(args))
	                             ? 1
	                             : args.scale_log2;
	typename SOURCE::template SCHEDULER<C> scheduler(all);
	struct fa_sm90_ring_position<C::STAGES> k, v;
	struct fa_sm90_ring_position<C::Q_SLOTS> q;
	/* Blocks of rows: of the logits, the next one, and the one whose O is not stored yet. */
	typename SOURCE::BLOCK block, next_block, done_block;
	struct fa_sm90_sums sums, done_sums;
	bool done = false, k_there = false;
	typename C::CHECK nonfinite = 0;
	fa_sm90_out_rows<C> out;
	fa_sm90_dots<C> dots;
	fa_sm90_p<C> p;
	float scale[2];
	int32_t end_key;   /* the sequence's end, relative to the group's first row */
	int32_t first_key; /* PAGED: the first visible key, likewise */
	int32_t key;       /* the tile's first key, likewise */
	int32_t left;      /* tiles of the block after this */
	bool first_tile;   /* the block's first tile */
	int32_t next_end_key, next_first_key, next_key, next_left; /* -1: no next block */
	int32_t next_skip = 0;  /* tiles to skip before this group's next one */
	int32_t skip_after = 0; /* of these, tiles of the next block */
	int32_t skip_tail = 0;  /* WINDOW: to skip at this block's end */
	/* ALiBi: slope in units of a dot product; bias per row. */
	float dot_slope = 0, next_dot_slope = 0, shift[2] = { 0, 0 };
	/* wgmma adds the bias. side: on which side of the rows the tile lies, or 0 (alibi.h). */
	bool alibi_by_mma = false;
	int32_t side = 0;
	bool any_row_unset; /* a row has no maximum yet */
	bool resumed = false;
	uint32_t stop = 0;             /* fa_sm90_stop_kind; not 0: no more tiles */
	struct fa_sm90_sight<C> sight; /* LISTED */

	const auto arrive = [&](uint32_t barrier) {
		if (lane == 0)
			fa_mbarrier_arrive(barrier);
	};
	const auto look_ahead = [&](void) {
		typename SOURCE::WORK work;

		next_left = -1;
		next_skip = C::WINDOW ? 0 : skip_after;
#pragma unroll 1
		while (next_left < 0 && scheduler.next(all, next_block, work)) {
			const struct fa_sm90_tile_range range = fa_sm90_tile_range_get<C>(args,
			                                                                  work);
			int32_t row = fa_sm90_group_row<C>(work.row, group, scheduler.reversed);

			if constexpr (C::PACKED) {
				row = work.row;
				SOURCE::place(all, group, work.set, work.head, row);
			}

			const struct fa_sm90_group_range group_range = fa_sm90_group_range_get<C>(
				args, work, range, row);
			const int32_t origin = C::BAND ? row + work.diagonal : 0;

			SOURCE::keep(all, next_block, work, row);
			next_end_key = work.n_k - origin;
			next_first_key = SOURCE::first_key(work) - origin;
			next_key = fa_sm90_tile_at<C>(group_range.tiles, group_range.tiles.count) *
			                   C::KEYS -
			           origin;
			next_left = group_range.tiles.count - 1;
			next_skip += group_range.before;
			skip_after = group_range.after;
			if (C::SCORE_MOD && !C::SOFTCAP)
				next_dot_slope = fa_sm90_alibi_slope(args, work.head) *
				                 fa_rcp(factor);
			/* Both forms mean the same; each is faster for its kernels. */
			if (!C::PACKED && range.count == 0) {
				if constexpr (C::ALIBI_MMA) {
					work.row = row;
					fa_sm90_epilogue_empty<C>(args, work);
				} else {
					fa_sm90_epilogue_empty<C>(
						args, fa_sm90_work_of<C>(all, next_block, group));
				}
			}
		}
	};
	const auto begin = [&](void) {
		end_key = next_end_key;
		first_key = next_first_key;
		dot_slope = next_dot_slope;
		key = next_key;
		left = next_left;
		first_tile = true;
		if (C::WINDOW)
			skip_tail = skip_after;
		if constexpr (C::LISTED)
			sight.begin(all, SOURCE::work_of(all, next_block));
		if constexpr (C::ALIBI_MMA) {
			alibi_by_mma = fa_sm90_alibi_fits(args, dot_slope);
			if (alibi_by_mma)
				fa_sm90_alibi_write_rows<C>(shared, group, dot_slope);
		}
	};
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
	/* Rows of the tile in the sequence: end in the high half, first in the low half. */
	constexpr uint32_t ALL_ROWS = (uint32_t)C::KEYS << 16;
	const auto rows_of_tile = [&](void) {
		if (!SOURCE::tails(all))
			return ALL_ROWS;
		return (uint32_t)min(end_key - key, C::KEYS) << 16 |
		       (C::PAGED ? (uint32_t)max(first_key - key, 0) : 0);
	};
	/* Also zeroes V's rows outside of the sequence. */
	const auto wait_v = [&](uint32_t rows) {
		fa_mbarrier_wait(shared + C::V_FULL + 8 * v.stage, v.parity);
		if (rows == ALL_ROWS)
			return;
		if (rows >> 16 < C::KEYS)
			fa_sm90_zero_v_rows<C>(v_tile(), (int32_t)(rows >> 16), C::KEYS, group);
		if (C::PAGED && rows % 65536 > 0)
			fa_sm90_zero_v_rows<C>(v_tile(), 0, (int32_t)(rows % 65536), group);
	};
	const auto release_k = [&](void) {
		arrive(shared + C::K_EMPTY + 8 * k.stage);
		k.advance();
	};
	const auto release_v = [&](void) {
		arrive(shared + C::V_EMPTY + 8 * v.stage);
		v.advance();
	};
	/* Waits for each skipped tile: the arrival must count for the right phase. */
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
	const auto take_tile = [&](void) {
		if constexpr (C::LISTED)
			left = !sight.take(shared, k.stage);
	};
	const auto partly_seen = [&](void) {
		if constexpr (C::LISTED)
			return sight.partly(all, group, end_key);
		return key + C::KEYS > end_key || (C::PAGED && key < first_key) ||
		       (C::BAND && (key + C::KEYS - 1 > args.window_right ||
		                    key < C::GROUP_ROWS - 1 - args.window_left));
	};
	const auto mask = [&](void) {
		if constexpr (C::SCORE_MOD) {
			if (side == 0) {
				const float base[2] = {
					C::CAP_SUBTRACTS_MAX && !sums.unset(0) ? sums.offset[0] : 0,
					C::CAP_SUBTRACTS_MAX && !sums.unset(1) ? sums.offset[1] : 0
				};

				fa_sm90_logits<C>(dots, base, args);
			}
		}
		if constexpr (C::LISTED) {
			if (partly_seen())
				sight.hide(dots, all, group, end_key);
			return false;
		}
		if (partly_seen()) {
			/* Recomputed if registers are few. */
			const int32_t thread_row = C::PACKED ? fa_sm90_thread_row<C>(all)
			                                     : kept_thread_row;

			fa_sm90_mask<C>(dots, args, key + (int32_t)(lane % 4 * 2) - thread_row,
			                first_key - thread_row, end_key - thread_row);
			return true;
		}
		return false;
	};
	const auto add_alibi = [&](void) {
		if (C::ALIBI_MMA && side != 0)
			shift[0] = shift[1] = dot_slope * factor * (float)(side * key);
		else if (C::SCORE_MOD && !C::SOFTCAP && args.alibi_slopes)
			fa_sm90_alibi_add(dots, dot_slope, factor,
			                  key + (int32_t)(lane % 4 * 2) - kept_thread_row,
			                  side_of_tile(), shift);
	};
	const auto find_unset = [&](void) {
		return __any_sync(~0u, sums.unset(0) || sums.unset(1)) != 0;
	};
	const auto update_max = [&](void) {
		const float key_slope = side > 0 ? dot_slope : side < 0 ? -dot_slope : 0;
		float row_shift[2] = { shift[0], shift[1] };
		const bool unset[2] = { sums.unset(0), sums.unset(1) };
		bool rescales;

		if (C::SCORE_MOD && !C::SOFTCAP && C::FIXED_MAX)
#pragma unroll
			for (int r = 0; r < 2; r++) {
				const int32_t row = kept_thread_row + r * 8;

				row_shift[r] = -dot_slope * factor *
				               (float)max(0,
				                          max(first_key - row, row - end_key + 1));
				if (C::ALIBI_MMA)
					row_shift[r] -= key_slope * factor *
					                (float)((int32_t)(lane % 4 * 2) - row);
			}
		rescales = fa_sm90_update_max<C>(sums, dots, factor, row_shift, key_slope, scale);
		/* The soft cap has subtracted the maximum of rows that had one; others follow. */
		if (C::CAP_SUBTRACTS_MAX) {
			const float add[2] = { unset[0] ? sums.offset[0] : 0,
				               unset[1] ? sums.offset[1] : 0 };

			fa_sm90_add_rows<C>(dots, add);
		}
		any_row_unset = !C::FIXED_MAX || find_unset();
		return rescales;
	};
	/* Kept out of uniform registers, and computed before the wait. */
	const uint32_t pingpong_group = C::MASK_ON_DEMAND ? threadIdx.x / 128 - 1 : group;
	const auto pingpong_wait = [&](void) {
		fa_barrier_sync(C::pingpong_barrier(pingpong_group), 256);
	};
	const auto pingpong_signal = [&](void) {
		fa_barrier_arrive(C::pingpong_barrier((pingpong_group + 1) % C::GROUPS), 256);
	};
	const auto zero_out = [&](void) {
#pragma unroll
		for (int i = 0; i < C::DIM_V / 2; i++)
			out[i] = 0;
	};

	/* A resumed thread block passes over finished ones. */
	uint32_t passed = C::YIELDS ? fa_ld_shared(shared + C::RECORD + 4) : 0;
#pragma unroll 1
	do
		look_ahead();
	while (passed-- > 0);
	if (next_left < 0)
		return;
	if (!C::INDEPENDENT && group == C::GROUPS - 1)
		pingpong_signal();
	if constexpr (C::PACKED)
		fa_sm90_share_begin<C>(all, group);
	q.advance(group);
	/* Runs once, unless an independent group skips more tiles than the ring holds. */
#pragma unroll 1
	do {
		for (; C::INDEPENDENT && next_skip > 0; next_skip--) {
			skip_k(1);
			skip_v(1);
		}
		begin();
		block = next_block;
		sums.reset();
		zero_out();
		if constexpr (C::WINDOW) {
			skip_k(next_skip);
			skip_v(next_skip);
			if (C::YIELDS)
				nonfinite = fa_ld_shared(shared + C::RECORD + 12) &
				            FA_CUDA_PREEMPT_BROKEN;
		}
		if constexpr (C::LISTED)
			nonfinite = fa_ld_shared(shared + C::RECORD + 12) & FA_CUDA_PREEMPT_BROKEN;
		if constexpr (C::YIELDS_IN_BLOCK) {
			const int32_t rest_tiles = (int32_t)fa_ld_shared(shared + C::RECORD + 8);
			const uint32_t slot = fa_ld_shared(shared + C::RECORD + 12);

			nonfinite = slot & FA_CUDA_PREEMPT_BROKEN;
			resumed = rest_tiles > 0;
			if (resumed) {
				key += (C::FIRST_TILE_FIRST ? rest_tiles : rest_tiles - 1 - left) *
				       C::KEYS;
				left = rest_tiles - 1;
				first_tile = false;
				fa_sm90_load_state<C>(args.preempt, slot % FA_CUDA_PREEMPT_BROKEN,
				                      group, out, sums);
			}
		}
		wait_q();
		wait_k();
		take_tile();
		if (C::ALIBI_MMA && alibi_by_mma)
			side = side_of_tile();
		fa_sm90_issue_dots<C>(dots, q_tile(), k_tile(), shared, group, side);
		if (!C::PACKED)
			look_ahead();
		fa_wgmma_wait<0>();
		fa_wgmma_hold(dots);
		release_k();
		release_q();
		scale[0] = scale[1] = 1;
		mask();
		if (!C::FIXED_MAX)
			add_alibi();
		update_max();
		if (C::FIXED_MAX)
			add_alibi();
		fa_sm90_exponentials<C, 0, steps>(sums, dots, factor, shift);
		fa_sm90_convert_p<C>(p, dots);
		if (C::YIELDS_IN_BLOCK && resumed)
			fa_sm90_rescale<C>(out, scale);

		/* Valid rows of the current logits' tile; its V is awaited an iteration later. */
		uint32_t rows = rows_of_tile();

#pragma unroll 1
		for (;;) {
			/* Packed kernels: the stop word ends the thread block's only block of
			 * rows. */
			const bool last_tile = !C::PACKED && left == 0;
			bool rescales = false;
			int32_t skip = 0;

			if constexpr (C::FIXED_MAX && C::LISTED)
				fa_sm90_prevent_overflow<C>(sums, out, p, all, block, group, sight);
			else if constexpr (C::FIXED_MAX)
				fa_sm90_prevent_overflow<C>(sums, out, p, all, block, group, key);
			scale[0] = scale[1] = 1;
			if (C::WINDOW && last_tile && skip_tail > 0) {
				skip_k(skip_tail);
				k_there = false;
			}
			if constexpr (C::YIELDS) {
				/* The only exit: with two the compiler places exponentials where
				 * ping-pong does not overlap them. */
				if (C::STOP_READ == FA_SM90_STOP_ON_DEMAND || !k_there) {
					if (!k_there)
						wait_k();
					stop = fa_ld_shared(shared + C::STOP + 4 * k.stage);
				}
				if (stop)
					break;
			}
			if (last_tile) {
				if (!C::YIELDS &&
				    (next_left < 0 || (C::INDEPENDENT && next_skip >= C::STAGES)))
					break;
				skip = C::WINDOW ? skip_tail + next_skip : next_skip;
				begin();
				skip_k(next_skip);
				if (C::WINDOW && next_skip > 0)
					wait_k();
				k_there = k_there && (!C::INDEPENDENT || skip == 0);
				wait_q();
			} else if (!C::LISTED) {
				key += C::FIRST_TILE_FIRST && first_tile ? left * C::KEYS
				                                         : -C::KEYS;
				first_tile = false;
				left--;
			}
			if (!C::YIELDS && !k_there)
				wait_k();
			take_tile();
			if (C::PINGPONG == FA_SM90_PINGPONG_GEMM)
				pingpong_wait();
			if (C::ALIBI_MMA)
				side = alibi_by_mma ? side_of_tile() : 0;
			fa_sm90_issue_dots<C>(dots, q_tile(), k_tile(), shared, group, side);
			if (C::PINGPONG == FA_SM90_PINGPONG_GEMM)
				pingpong_signal();
			if (!C::PACKED && done) {
				nonfinite |= fa_sm90_epilogue<C>(out, done_sums, all, done_block,
				                                 group);
				zero_out();
			}
			wait_v(rows);
			fa_wgmma_fence();
			fa_sm90_issue_product<C>(out, p, v_tile());
			done = last_tile;
			if (last_tile) {
				done_block = block;
				done_sums = sums;
				block = next_block;
				sums.reset();
				any_row_unset = true;
				look_ahead();
			}
			if (!C::MASK_ON_DEMAND)
				rows = rows_of_tile();
			fa_wgmma_wait<1>();
			fa_wgmma_hold(dots);
			release_k();
			if (C::ONE_Q)
				release_q();
			bool half_done = false;

			if (C::CAP_SUBTRACTS_MAX)
				half_done = !partly_seen() &&
				            !(C::FEW_REGISTERS ? find_unset() : any_row_unset);
			if (half_done) {
				fa_sm90_softcap_exponentials<C>(sums, dots, args);
				if (C::MASK_ON_DEMAND)
					rows = ALL_ROWS;
			} else {
				const bool masked = mask();

				if (C::MASK_ON_DEMAND)
					rows = masked ? rows_of_tile() : ALL_ROWS;
				if (!C::FIXED_MAX)
					add_alibi();
				if (C::FEW_REGISTERS && C::FIXED_MAX ? find_unset() : any_row_unset)
					rescales |= update_max();
				if (C::FIXED_MAX)
					add_alibi();
			}
			if (C::PINGPONG == FA_SM90_PINGPONG_SOFTMAX && !C::WAITS_LATE)
				pingpong_wait();
			/* After half of the exponentials O is complete and P free: the rest is
			 * rounded meanwhile. The branch keeps the compiler from waiting earlier. */
			if (!half_done)
				fa_sm90_exponentials<C, 0, steps / 2>(sums, dots, factor, shift);
			if (!C::ONE_Q)
				release_q();
			if (C::PINGPONG == FA_SM90_PINGPONG_SOFTMAX && C::WAITS_LATE)
				pingpong_wait();
			fa_wgmma_wait<0>();
			fa_wgmma_hold(out);
			release_v();
			skip_v(skip);
			k_there = (!C::FEW_REGISTERS || C::FIXED_MAX) &&
			          fa_mbarrier_test(shared + C::K_FULL + 8 * k.stage, k.parity);
			if (C::STOP_READ == FA_SM90_STOP_BEFORE_EXP && k_there)
				stop = fa_ld_shared(shared + C::STOP + 4 * k.stage);
			if constexpr (C::PINGPONG == FA_SM90_PINGPONG_SOFTMAX) {
				/* The next group runs during the remaining exponentials. */
				fa_sm90_exponentials<C, steps / 2, C::SIGNAL_STEPS>(sums, dots,
				                                                    factor, shift);
				pingpong_signal();
				fa_sm90_exponentials<C, C::SIGNAL_STEPS, steps>(sums, dots, factor,
				                                                shift);
			} else {
				fa_sm90_exponentials<C, steps / 2, steps>(sums, dots, factor,
				                                          shift);
			}
			if (C::STOP_READ == FA_SM90_STOP_AFTER_EXP && k_there)
				stop = fa_ld_shared(shared + C::STOP + 4 * k.stage);
			fa_sm90_convert_p<C>(p, dots);
			if (rescales && !last_tile)
				fa_sm90_rescale<C>(out, scale);
		}

		/* Consumes the last group's extra arrival. */
		if (!C::INDEPENDENT && group == 0)
			pingpong_wait();
		if (!C::PACKED && done) {
			nonfinite |= fa_sm90_epilogue<C>(out, done_sums, all, done_block, group);
			zero_out();
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
			skip_v(skip_tail);
		if (C::YIELDS_IN_BLOCK && stop == FA_SM90_STOPPED && left > 0)
			fa_sm90_save_state<C>(args.preempt, fa_ld_shared(shared + C::STATE_SLOT),
			                      group, out, sums);
		else
			nonfinite |= fa_sm90_epilogue<C>(out, sums, all, block, group);
	} while (C::INDEPENDENT && next_left >= 0);
	for (; C::INDEPENDENT && next_skip > 0; next_skip--) {
		skip_k(1);
		skip_v(1);
	}
	if ((C::BAND || C::FIXED_MAX) && __any_sync(~0u, nonfinite)) {
		if (C::YIELDS && stop == FA_SM90_STOPPED)
			fa_st_shared(shared + C::NONFINITE, 1);
		else
			fa_sm90_recompute<C>(all, group, nonfinite);
	}
}
