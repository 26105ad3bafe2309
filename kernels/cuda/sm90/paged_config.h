/*
 * Compile-time configuration of a decode kernel over pages with bulk copies.
 *   DIM        columns of Q, K, V and O, exactly the tensors'
 *   ATOMS      16-row fragments of query rows
 *   GROUPS     of four consumer warps; groups take tiles in turn
 *   STAGES     of the ring; each holds a tile of K and V
 *   BLOCKS     thread blocks per SM
 *   SMALL      the launch carries the page table
 *   SPLIT_ITEMS  as in common/paged_segment.h
 *   TWO_LEVEL  many partial results are reduced in two levels (paged_reduce.h)
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/ptx/math.h"
#include "kernels/cuda/sm90/paged_kernels.h"

#include <stddef.h>
#include <stdint.h>

template <class T_, int DIM_, int ATOMS_, int GROUPS_, int STAGES_, int BLOCKS_, bool SMALL_,
          bool SPLIT_ITEMS_, bool TWO_LEVEL_>
struct fa_sm90_paged_config {
	using T = T_;
	static constexpr int DIM = DIM_, DIM_V = DIM_, ATOMS = ATOMS_;
	static constexpr int GROUPS = GROUPS_, STAGES = STAGES_;
	static constexpr int BLOCKS = BLOCKS_, BYTES = 2;
	/* Consumer warps, four per tile, then the producer warp. */
	static constexpr int TILE_WARPS = 4, WARPS = GROUPS * TILE_WARPS, LOADERS = 1;
	static constexpr int JOINED = WARPS * 32;
	static constexpr bool SETMAXNREG = FA_SM90_PAGED_SETMAXNREG(DIM, ATOMS, GROUPS);
	static constexpr int THREADS = JOINED + (SETMAXNREG ? 128 : 32);
	static constexpr int ROWS = ATOMS * 16;
	/* Parts of at most 16 rows use one atom. */
	static constexpr bool ONE_ATOM = SETMAXNREG && FA_SM90_PAGED_ONE_ATOM;
	static constexpr bool F32 = false, QUANTISED = false, SMALL = SMALL_,
			      SPLIT_ITEMS = SPLIT_ITEMS_, TWO_LEVEL = TWO_LEVEL_,
			      PRECOMPUTED = true;
	static constexpr int OWN = FA_OWN_NO;
	static constexpr bool APPENDS = FA_SM90_PAGED_APPENDS(DIM, ATOMS); /* paged_append.h */
	/* The first tiles' loads, at most EARLY_TILES, are issued before all else
	 * (fa_sm90_paged_load_early()); the first warp initialises the mbarriers. */
	static constexpr bool EARLY_LOADS = FA_SM90_PAGED_EARLY_LOADS(DIM) && !SPLIT_ITEMS;
	static constexpr int EARLY_TILES = FA_SM90_PAGED_EARLY_TILES(DIM);
	/* A __syncthreads() follows the initialisation of the mbarriers (paged_codes.h). */
	static constexpr bool SYNCS_AT_START = false;
	/* The planner guarantees that rows are few enough for fp32. */
	static constexpr bool ROWS_IN_FP32 = !SPLIT_ITEMS;
	using SMALL_ARGS = struct fa_cuda_paged_small_attention;

	/* Names that common/warp_softmax.h needs: no pairs of warps, 16 keys at a time. */
	static constexpr int SPLIT = 1, WARP_DIM_V = DIM_V, WARP_KEYS = 16;
	static constexpr uint32_t P_BYTES = 0, ROW_BYTES = 0;

	static constexpr uint32_t PITCH = DIM * 2;
	static constexpr uint32_t QUARTER = FA_SM90_PAGED_QUARTER(DIM);
	static constexpr uint32_t K_BYTES = 4 * QUARTER, STAGE_BYTES = 2 * K_BYTES;
	static constexpr uint32_t STRIPS = DIM == 64 ? 2 : 1; /* strips of a copy, at most */
	static constexpr bool Q_IN_REGISTERS = FA_SM90_PAGED_Q_IN_REGISTERS(DIM, ATOMS);
	static constexpr uint32_t Q_PITCH = FA_SM90_PAGED_Q_PITCH(DIM);
	static constexpr uint32_t MERGE_COLUMNS = FA_SM90_PAGED_MERGE_COLUMNS(DIM, ATOMS);
	static constexpr uint32_t MERGE_PITCH = FA_SM90_PAGED_MERGE_PITCH(DIM, ATOMS);
	/* Rows that the warps merge at a time; 0: MERGE_COLUMNS columns of all rows. */
	static constexpr uint32_t MERGE_ROWS = FA_SM90_PAGED_MERGE_ROWS(DIM);
	static constexpr uint32_t MERGE_ROW_PITCH = DIM + 8;

	static constexpr bool STASHES_WALK = SETMAXNREG;
	struct SHARED {
		uint8_t ring[STAGES][STAGE_BYTES];
		uint8_t q[Q_IN_REGISTERS ? 0 : ROWS][Q_PITCH];
		float merge[WARPS][ROWS][MERGE_PITCH];
		float stats[WARPS][ROWS][2];                     /* maximum, sum */
		uint8_t rows_info[WARPS][ROWS][32];              /* struct fa_paged_row */
		uint8_t segments[STASHES_WALK ? WARPS : 0][128]; /* fa_paged_segment_of */
		uint8_t split[32]; /* struct fa_sm90_paged_split_groups */

		/* mbarriers, once per tile. full: lane 0 of the producer arrives with the tile's
		 * transaction bytes; the four warps that take the tile wait. empty: lane 0 of each
		 * of them arrives; the producer waits. */
		uint64_t full[STAGES], empty[STAGES];
	};

	static constexpr uint32_t RING = offsetof(SHARED, ring), Q = offsetof(SHARED, q);
	static constexpr uint32_t MERGE = offsetof(SHARED, merge), STATS = offsetof(SHARED, stats);
	static constexpr uint32_t ROWS_INFO = offsetof(SHARED, rows_info);
	static constexpr uint32_t WALK_AT = offsetof(SHARED, segments);
	static constexpr uint32_t SPLIT_AT = offsetof(SHARED, split);
	static constexpr uint32_t FULL = offsetof(SHARED, full), EMPTY = offsetof(SHARED, empty);

	/* Named barriers. INIT_COMPUTE, once: the mbarriers are initialised; all consumers sync,
	 * the producer warp arrives unless EARLY_LOADS. INIT_LOADER, once, EARLY_LOADS: the first
	 * warp arrives, the producer waits. COMPUTE: all consumers, at segment ends. */
	static constexpr uint32_t INIT_COMPUTE = 1, COMPUTE = 2, INIT_LOADER = 3;
	static constexpr int INIT_COMPUTE_THREADS = EARLY_LOADS ? JOINED : JOINED + 32;

	static __device__ __forceinline__ void join(void)
	{
		fa_barrier_sync(COMPUTE, JOINED);
	}

	/* Each warp has a quarter of its tile. */
	static __device__ __forceinline__ int32_t key(uint32_t t, int i)
	{
		return 2 * t + i % 2 + i / 2 * 8;
	}

	static __device__ __forceinline__ bool has_no_nan(uint4 value)
	{
		uint32_t zeros = fa_fma_packed<T>(value.x, 0, 0);

		zeros = fa_fma_packed<T>(value.y, 0, zeros);
		zeros = fa_fma_packed<T>(value.z, 0, zeros);
		zeros = fa_fma_packed<T>(value.w, 0, zeros);
		return zeros == 0;
	}

	static_assert(sizeof(SHARED) == FA_SM90_PAGED_SHARED_BYTES(DIM, ATOMS, GROUPS, STAGES),
	              "the layout is what the host plans");
	static_assert(THREADS == FA_SM90_PAGED_THREADS(DIM, ATOMS, GROUPS),
	              "the thread count is what the host plans");
	/* Else a group ahead could mistake a stage's phases. */
	static_assert(STAGES % GROUPS == 0, "a stage belongs to one group");
	static_assert(STAGES > GROUPS, "tiles arrive while others are computed");
	static_assert(!EARLY_LOADS || (EARLY_TILES <= STAGES && EARLY_TILES <= 4 && GROUPS == 1),
	              "an early tile has a stage and eight lanes; one group takes all tiles");
	static_assert(DIM % 64 == 0 && QUARTER % 128 == 0,
	              "loads are free of bank conflicts for these only");
	static_assert(FA_CUDA_PAGED_TILE == 64 && FA_CUDA_PAGED_STRIP == 16,
	              "a quarter of a tile lies in one page");
};
