/*
 * Shape of a decode kernel over pages on bulk copies.
 *   DIM     columns of Q, K, V and O, all of them there
 *   ATOMS   16-row fragments
 *   GROUPS  of four warps, which take tiles in turn
 *   STAGES  tiles of K and V in shared memory
 *   BLOCKS  that share an SM
 *   SMALL   the launch carries the pages' table
 *   PIECES  as in sm80/paged_walk.h
 *   LEVELS  shares are added up in two levels where they are many (paged_share.h)
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm90/paged_kernels.h"

#include <stdint.h>

template <class T_, int DIM_, int ATOMS_, int GROUPS_, int STAGES_, int BLOCKS_, bool SMALL_,
          bool PIECES_, bool LEVELS_>
struct fa_sm90_paged_config {
	using T = T_;
	static constexpr int DIM = DIM_, DIM_V = DIM_, ATOMS = ATOMS_;
	static constexpr int GROUPS = GROUPS_, STAGES = STAGES_;
	static constexpr int BLOCKS = BLOCKS_, BYTES = 2;
	/* Those that compute, four of each tile, then one that loads. */
	static constexpr int TAKERS = 4, WARPS = GROUPS * TAKERS, LOADERS = 1;
	static constexpr int JOINED = WARPS * 32;
	static constexpr bool GIVES = FA_SM90_PAGED_GIVES(DIM, ATOMS, GROUPS);
	static constexpr int THREADS = JOINED + (GIVES ? 128 : 32);
	static constexpr int ROWS = ATOMS * 16;
	/* Whether parts of few rows are computed as with one fragment. */
	static constexpr bool FEW = GIVES && FA_SM90_PAGED_FEW;
	static constexpr bool F32 = false, CODES = false, SMALL = SMALL_, PIECES = PIECES_,
			      LEVELS = LEVELS_, DIVIDED = true;
	static constexpr bool APPENDS = FA_SM90_PAGED_APPENDS(DIM, ATOMS); /* paged_append.h */
	/* Whether the block's first tiles are asked for before all else (fa_sm90_paged_load_first()),
	 * and mbarriers are made by the first warp; how many tiles, at most. */
	static constexpr bool EARLY = FA_SM90_PAGED_EARLY(DIM) && !PIECES;
	static constexpr int EARLY_TILES = FA_SM90_PAGED_EARLY_TILES(DIM);
	/* Whether all threads meet when they begin, behind the making of mbarriers (paged_codes.h). */
	static constexpr bool MEETS = false;
	/* The planner sees to it. */
	static constexpr bool ROWS_IN_FP32 = !PIECES;
	using SMALL_ARGS = struct fa_cuda_paged_small_attention;

	/* What softmax.h of sm80 wants to know: no pairs, 16 keys at a time. */
	static constexpr int SPLIT = 1, WARP_DIM_V = DIM_V, WARP_KEYS = 16;
	static constexpr uint32_t P_BYTES = 0, ROW_BYTES = 0;

	static constexpr uint32_t PITCH = DIM * 2; /* from token to token */
	static constexpr uint32_t QUARTER = FA_SM90_PAGED_QUARTER(DIM);
	static constexpr uint32_t K_BYTES = 4 * QUARTER, STAGE_BYTES = 2 * K_BYTES;
	static constexpr uint32_t STRIPS = DIM == 64 ? 2 : 1; /* of a copy, at most */
	static constexpr bool Q_HELD = FA_SM90_PAGED_Q_HELD(DIM, ATOMS);
	static constexpr uint32_t Q_PITCH = FA_SM90_PAGED_Q_PITCH(DIM);
	static constexpr uint32_t MERGE_COLUMNS = FA_SM90_PAGED_MERGE_COLUMNS(DIM, ATOMS);
	static constexpr uint32_t MERGE_PITCH = FA_SM90_PAGED_MERGE_PITCH(DIM, ATOMS);
	/* Rows that warps bring together at a time, of all columns; 0: some columns of all rows. */
	static constexpr uint32_t MERGE_ROWS = FA_SM90_PAGED_MERGE_ROWS(DIM);
	static constexpr uint32_t MERGE_ROW_PITCH = DIM + 8;

	/* The block's shared memory, in this order. */
	static constexpr uint32_t RING = 0;
	static constexpr uint32_t Q = RING + STAGES * STAGE_BYTES;
	static constexpr uint32_t MERGE = Q + (Q_HELD ? 0 : ROWS * Q_PITCH); /* [warp][row] */
	static constexpr uint32_t STATS = MERGE + WARPS * ROWS * MERGE_PITCH * 4;
	static constexpr uint32_t FACTS = STATS + WARPS * ROWS * 8; /* [warp][row] */
	static constexpr bool PARKS = GIVES;
	static constexpr uint32_t PARKED = FACTS + WARPS * ROWS * 32;
	static constexpr uint32_t LAST = PARKED + (PARKS ? WARPS * 128 : 0);

	/*
	 * Barriers, 8 bytes each. The loading warp's lane 0 arrives at a FULL with the bytes
	 * of the tile's copies, and the four warps that take the tile wait; each of those arrives
	 * at an EMPTY, and the loading warp waits. Once a tile.
	 */
	static constexpr uint32_t FULL = LAST + 32, EMPTY = FULL + 8 * STAGES;
	static constexpr uint32_t SHARED_BYTES = EMPTY + 8 * STAGES;

	/* Named barriers: the mbarriers are there, once, for the warps that compute; of these, at
	 * the ends of segments; and the mbarriers are there, once, for the loading warp, if that
	 * has not made them. */
	static constexpr uint32_t BEGUN = 1, COMPUTE = 2, READY = 3;
	static constexpr int BEGINNERS = EARLY ? JOINED : JOINED + 32;

	static __device__ __forceinline__ void join(void)
	{
		fa_barrier_sync(COMPUTE, JOINED);
	}

	/* Each warp that takes a tile has a quarter of it. */
	static __device__ __forceinline__ int32_t key(uint32_t t, int i)
	{
		return 2 * t + i % 2 + i / 2 * 8;
	}

	static __device__ __forceinline__ bool are_numbers(uint4 value)
	{
		/* 0 times what is finite is 0. */
		uint32_t zeros = fa_fma_packed<T>(value.x, 0, 0);

		zeros = fa_fma_packed<T>(value.y, 0, zeros);
		zeros = fa_fma_packed<T>(value.z, 0, zeros);
		zeros = fa_fma_packed<T>(value.w, 0, zeros);
		return zeros == 0;
	}

	static_assert(SHARED_BYTES == FA_SM90_PAGED_SHARED_BYTES(DIM, ATOMS, GROUPS, STAGES),
	              "the host's table must agree");
	static_assert(THREADS == FA_SM90_PAGED_THREADS(DIM, ATOMS, GROUPS), "likewise");
	/* Else a group that is ahead could take a stage's old phase for the one after the next. */
	static_assert(STAGES % GROUPS == 0, "a stage is one group's");
	static_assert(STAGES > GROUPS, "some arrive while others are computed");
	static_assert(!EARLY || (EARLY_TILES <= STAGES && EARLY_TILES <= 4 && GROUPS == 1),
	              "each has a stage and eight lanes, and tiles are one group's");
	static_assert(DIM % 64 == 0 && QUARTER % 128 == 0, "banks are as the loads think");
	static_assert(FA_CUDA_PAGED_TILE == 64 && FA_CUDA_PAGED_STRIP == 16,
	              "a quarter of a tile lies in one page");
};
