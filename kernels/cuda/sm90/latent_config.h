/*
 * Compile-time configuration of decode of MLA (latent.h), and its shared memory.
 */
#pragma once

#include "kernels/cuda/common/own.h"
#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/barrier.h"
#include "kernels/cuda/sm90/latent_kernels.h"

#include <stddef.h>
#include <stdint.h>
#include <type_traits>

/* CODES_: pages hold e4m3. */
template <class T_, bool CODES_> struct fa_sm90_latent_config {
	using T = T_;
	static constexpr bool CODES = CODES_;
	static constexpr int DIM = FA_SM90_LATENT_DIM, DIM_V = FA_SM90_LATENT_DIM_V;
	static constexpr int ROWS = FA_SM90_LATENT_ROWS, KEYS = FA_CUDA_PAGED_TILE, BYTES = 2;
	static constexpr int JOINED = 256; /* consumers */
	static constexpr int CONSUMER_REGISTERS = CODES ? FA_SM90_LATENT_CODES_CONSUMER_REGISTERS
	                                                : FA_SM90_LATENT_CONSUMER_REGISTERS;
	static constexpr int PRODUCER_REGISTERS = CODES ? FA_SM90_LATENT_WIDENER_REGISTERS
	                                                : FA_SM90_LATENT_PRODUCER_REGISTERS;
	/* What common/paged_rows.h and common/paged_segment.h ask for. */
	static constexpr bool F32 = false, QUANTISED = false, SPLIT_ITEMS = false,
			      PRECOMPUTED = true, ROWS_IN_FP32 = true;
	static constexpr int OWN = FA_OWN_NO;

	/* Q and tiles of K are columns of 64 elements, swizzled by TMA's 128-byte swizzle. They are
	 * loaded and released by quarters: two columns of V each, the last one also K's column that
	 * is not V's. A group has two quarters of V. */
	static constexpr uint32_t COLUMN = 64 * 128, COLUMNS = DIM / 64, QUARTERS = 4;
	static constexpr uint32_t QUARTER_COLUMNS = DIM_V / 64 / QUARTERS;
	static constexpr uint32_t QUARTER_BYTES = QUARTER_COLUMNS * COLUMN;
	static constexpr uint32_t TILE_BYTES = COLUMNS * COLUMN;
	static constexpr int QUARTER_V = DIM_V / QUARTERS;

	static constexpr uint32_t LOOKUP_BYTES = 304;

	struct SHARED {
		uint8_t q[TILE_BYTES];
		/* Even tiles of a segment are in the first stage, odd ones in the second. As soon as
		 * a tile's logits are computed, P overwrites the column that is not V's. */
		uint8_t k[2][TILE_BYTES];
		uint8_t rows_info[ROWS][32]; /* struct fa_paged_row */
		float offsets[2][ROWS];      /* of each group, as it computed its last P */
		float sums[2][ROWS];
		/* mbarriers of each stage's quarters. full: the producer arrives with the
		 * transaction bytes, or its four warps that widen codes; both groups wait. empty: warps of consumers arrive; the
		 * producer waits. */
		uint64_t full[2][QUARTERS], empty[2][QUARTERS];
		uint32_t join[4]; /* latent_join.h */
		/* The consumers' fa_sm90_latent_segment, while they compute with codes. */
		uint8_t walk[128];
		uint8_t lookups[4][LOOKUP_BYTES]; /* of warps that widen codes (latent_widen.h) */
	};

	static constexpr uint32_t Q_AT = offsetof(SHARED, q), K_AT = offsetof(SHARED, k);
	static constexpr uint32_t P_AT = K_AT + (COLUMNS - 1) * COLUMN; /* of the first stage */
	static constexpr uint32_t ROWS_INFO = offsetof(SHARED, rows_info);
	static constexpr uint32_t OFFSETS = offsetof(SHARED, offsets);
	static constexpr uint32_t SUMS = offsetof(SHARED, sums), JOIN = offsetof(SHARED, join);
	static constexpr uint32_t WALK = offsetof(SHARED, walk);
	static constexpr uint32_t LOOKUPS = offsetof(SHARED, lookups);

	static constexpr __device__ __forceinline__ uint32_t full(uint32_t stage, uint32_t quarter)
	{
		return (uint32_t)offsetof(SHARED, full) + 8 * (QUARTERS * stage + quarter);
	}

	static constexpr __device__ __forceinline__ uint32_t empty(uint32_t stage, uint32_t quarter)
	{
		return (uint32_t)offsetof(SHARED, empty) + 8 * (QUARTERS * stage + quarter);
	}

	/* The @i-th quarter in the order of loads, in which they become free. */
	static constexpr __device__ __forceinline__ uint32_t quarter(uint32_t i)
	{
		return i % 2 * 2 + i / 2;
	}

	static constexpr uint32_t PRODUCERS = CODES ? 4 : 1; /* warps */

	/* Warps that release a quarter. */
	static constexpr __device__ __forceinline__ uint32_t releases(uint32_t stage,
	                                                              uint32_t quarter)
	{
		/* P of the second stage lies in the second group's quarter, and the first reads it. */
		return stage == 1 && quarter == QUARTERS - 1 ? 8 : 4;
	}

	/* Named barriers. COMPUTE: all consumers. P_READY + group: the other group waits for this
	 * group's P. GROUP + group: the group's warps. DOTS_DONE: the second group waits for the
	 * first one's logits. */
	static constexpr uint32_t COMPUTE = 1, P_READY = 2, GROUP = 4, DOTS_DONE = 6;

	/* The exponential of a row's maximum is 2^MAX_EXPONENT (docs/kernels.md, "Large values"), and
	 * at most 2^8 times that. In fp16 that is just below the largest number. */
	static constexpr int MAX_EXPONENT = std::is_same<T, fa_bf16>::value ? -40 : 7;

	static __device__ __forceinline__ void join(void)
	{
		fa_barrier_sync(COMPUTE, JOINED);
	}

	static_assert(sizeof(SHARED) == FA_SM90_LATENT_SHARED_BYTES,
	              "the layout is what the host plans");
	/* Else setmaxnreg would wait for ever: a block starts with equal multiples of 8. */
	static_assert(JOINED * CONSUMER_REGISTERS +
	                              (FA_SM90_LATENT_THREADS - JOINED) * PRODUCER_REGISTERS <=
	                      65536 / FA_SM90_LATENT_THREADS / 8 * 8 * FA_SM90_LATENT_THREADS,
	              "the block has these registers");
	static_assert(TILE_BYTES % 1024 == 0, "columns are aligned for the swizzle");
};
