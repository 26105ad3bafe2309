/*
 * Configuration of a decode kernel over pages of 8-bit codes; one thread block per SM. Parameters
 * as in paged_config.h; STORE is FA_STORE_E4M3 or FA_STORE_INT8.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/common/quantised.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/sm90/paged_kernels.h"

#include <stddef.h>
#include <stdint.h>

template <int STORE_, int DIM_, int ATOMS_, int GROUPS_, int STAGES_, bool SMALL_, bool TWO_LEVEL_>
struct fa_sm90_codes_config {
	using T = fa_f16;
	static constexpr int STORE = STORE_, DIM = DIM_, DIM_V = DIM_, ATOMS = ATOMS_;
	static constexpr int GROUPS = GROUPS_, STAGES = STAGES_, ROWS = ATOMS * 16, BYTES = 2;
	/* Consumer warps, four per tile; a producer warp for each group; a warp that converts Q;
	 * and idle warps that fill its warpgroup, because setmaxnreg works on warpgroups. */
	static constexpr int TILE_WARPS = 4, WARPS = GROUPS * TILE_WARPS, LOADERS = GROUPS;
	static constexpr int JOINED = WARPS * 32, THREADS = JOINED + 128;
	static constexpr int PRODUCER_REGISTERS = FA_SM90_CODES_PRODUCER_REGISTERS(GROUPS);
	static constexpr int CONSUMER_REGISTERS = FA_SM90_CODES_CONSUMER_REGISTERS(GROUPS);
	static constexpr bool F32 = false, QUANTISED = true, SMALL = SMALL_, SPLIT_ITEMS = false,
			      TWO_LEVEL = TWO_LEVEL_, PRECOMPUTED = true;
	static constexpr int OWN = FA_OWN_NO;
	static constexpr bool APPENDS = false, EARLY_LOADS = false, SYNCS_AT_START = true,
			      ROWS_IN_FP32 = false;
	using SMALL_ARGS = struct fa_cuda_paged_small_attention_quantised;

	static constexpr int SPLIT = 1, WARP_DIM_V = DIM_V, WARP_KEYS = FA_CUDA_PAGED_STRIP;
	static constexpr uint32_t P_BYTES = 0, ROW_BYTES = 0;

	/* A stage: K, V, then the token scales of K and of V. */
	static constexpr uint32_t PITCH = DIM, PITCH_V = DIM_V;
	static constexpr uint32_t QUARTER = 16 * PITCH, K_BYTES = 4 * QUARTER;
	static constexpr uint32_t SCALES = 2 * K_BYTES, STAGE_BYTES = SCALES + 512;
	static constexpr uint32_t STRIPS = 256 / DIM; /* per bulk copy, at most */
	static constexpr bool Q_IN_REGISTERS = FA_SM90_CODES_Q_IN_REGISTERS(DIM, ATOMS);
	static constexpr uint32_t MERGE_COLUMNS = FA_SM90_CODES_MERGE_COLUMNS(ATOMS);
	static constexpr uint32_t MERGE_PITCH = FA_SM90_CODES_MERGE_PITCH(ATOMS);
	static constexpr uint32_t MERGE_ROWS = 0, MERGE_ROW_PITCH = 0;

	/* Q of one segment: fragments in lane order, facts of rows, factors of their dot
	 * products. */
	struct Q_SHARED {
		uint8_t fragments[ROWS][DIM * 2];
		uint8_t rows_info[ROWS][32]; /* struct fa_paged_row */
		float factors[ROWS];
	};

	struct SHARED {
		uint8_t ring[STAGES][STAGE_BYTES];
		struct Q_SHARED q[2];
		float merge[WARPS][ROWS][MERGE_PITCH];
		float stats[WARPS][ROWS][2]; /* maximum, sum */
		uint8_t split[32];           /* struct fa_sm90_paged_split_groups */

		/* mbarriers. full and empty: as in paged_config.h. q_full: lane 0 of the converting
		 * warp arrives, all consumer warps wait; q_empty: lane 0 of each consumer warp
		 * arrives, the converting warp waits; once per segment. */
		uint64_t full[STAGES], empty[STAGES];
		uint64_t q_full[2], q_empty[2];

		uint8_t first_walk[128]; /* fa_paged_segment_of */
	};

	static constexpr uint32_t ROWS_INFO = offsetof(Q_SHARED, rows_info);
	static constexpr uint32_t FACTORS = offsetof(Q_SHARED, factors);
	static constexpr uint32_t Q_BYTES = sizeof(Q_SHARED);
	static constexpr uint32_t RING = offsetof(SHARED, ring), Q = offsetof(SHARED, q);
	static constexpr uint32_t MERGE = offsetof(SHARED, merge), STATS = offsetof(SHARED, stats);
	static constexpr uint32_t SPLIT_AT = offsetof(SHARED, split);
	static constexpr uint32_t FULL = offsetof(SHARED, full), EMPTY = offsetof(SHARED, empty);
	static constexpr uint32_t Q_FULL = offsetof(SHARED, q_full);
	static constexpr uint32_t Q_EMPTY = offsetof(SHARED, q_empty);
	static constexpr uint32_t FIRST_WALK_AT = offsetof(SHARED, first_walk);

	static constexpr uint32_t COMPUTE = 2; /* named barrier of all consumers, at segment ends */

	static __device__ __forceinline__ void join(void)
	{
		fa_barrier_sync(COMPUTE, JOINED);
	}

	static __device__ __forceinline__ int32_t key(uint32_t t, int i)
	{
		return 2 * t + i % 2 + i / 2 * 8;
	}

	/* Rows lie as in pages. */
	template <bool V> static __device__ __forceinline__ uint32_t place(uint32_t, uint32_t chunk)
	{
		return chunk;
	}

	static __device__ __forceinline__ bool has_no_nan(uint4 value)
	{
		return STORE != FA_STORE_E4M3 ||
		       (fa_quantised_nan_bytes(value.x) | fa_quantised_nan_bytes(value.y) |
		        fa_quantised_nan_bytes(value.z) | fa_quantised_nan_bytes(value.w)) == 0;
	}

	static_assert(sizeof(SHARED) == FA_SM90_CODES_SHARED_BYTES(DIM, ATOMS, GROUPS, STAGES),
	              "the layout is what the host plans");
	static_assert(THREADS == FA_SM90_CODES_THREADS(GROUPS),
	              "the thread count is what the host plans");
	static_assert(DIM == 64 || DIM == 128 || DIM == 256,
	              "loads are free of bank conflicts for these only");
	/* Else a group that is ahead could mistake a stage's previous phase for its next. */
	static_assert(STAGES % GROUPS == 0, "a stage belongs to one group");
	static_assert(LOADERS == 1 || LOADERS == GROUPS,
	              "a stage belongs to one loader and one group");
	static_assert(STAGES > GROUPS, "tiles arrive while others are computed");
	static_assert(FA_CUDA_PAGED_TILE == 64 && FA_CUDA_PAGED_STRIP == 16,
	              "a quarter of a tile lies in one page");
};
