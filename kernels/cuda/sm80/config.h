/*
 * Shape of a forward kernel for 16-bit operands on mma.sync.
 *   DIM, DIM_V  columns of Q and K, of V and O, zero-padded
 *   WARPS       per block
 *   ATOMS       16-row fragments per warp; two halve the reads of K and V from shared memory
 *   SPLIT       warps that share their rows. With 1, softmax needs no barrier. With 2, a pair
 *               halves a tile's keys for the dot products and V's columns for O, so that two
 *               ATOMS fit the registers at DIM_V > 128
 *   KEYS        per tile of K and V
 *   STAGES      tiles of K and V in shared memory
 *   BLOCKS      per SM
 *   BAND        rows see a window of keys (causal is one)
 *   SOURCE      where rows, K and V come from (source.h)
 */
#pragma once

#include "kernels/cuda/common/logits.h"
#include "kernels/cuda/sm80/kernels.h"
#include "kernels/cuda/sm80/source.h"

#include <stdint.h>

/* The kinds of kernels that kernels.h lists. */
struct fa_sm80_full {
	using LOGITS = struct fa_logits_scaled;
	static constexpr bool BAND = false;
};

struct fa_sm80_band {
	using LOGITS = struct fa_logits_scaled;
	static constexpr bool BAND = true;
};

struct fa_sm80_rich {
	using LOGITS = struct fa_logits_rich;
	static constexpr bool BAND = true;
};

template <class T_, class KIND, int DIM_, int DIM_V_, int WARPS_, int ATOMS_, int SPLIT_, int KEYS_,
          int STAGES_, int BLOCKS_, class SOURCE_ = struct fa_sm80_tensors>
struct fa_sm80_config {
	using T = T_;
	using SOURCE = SOURCE_;
	using LOGITS = typename KIND::LOGITS;
	static constexpr bool NEAR = !LOGITS::any_alignment; /* tile.h */
	static constexpr bool BAND = KIND::BAND;
	static constexpr int DIM = DIM_, DIM_V = DIM_V_;
	static constexpr int WARPS = WARPS_, ATOMS = ATOMS_, THREADS = WARPS * 32;
	static constexpr int KEYS = KEYS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
	static constexpr int SPLIT = SPLIT_;
	static constexpr int WARP_ROWS = ATOMS * 16, ROWS = WARPS / SPLIT * WARP_ROWS;
	static constexpr int WARP_KEYS = KEYS / SPLIT, WARP_DIM_V = DIM_V / SPLIT;

	static constexpr uint32_t Q_BYTES = ROWS * DIM * 2;
	static constexpr uint32_t K_BYTES = KEYS * DIM * 2;
	static constexpr uint32_t V_BYTES = KEYS * DIM_V * 2;
	/* A pair exchanges each warp's P, and a float per row. */
	static constexpr uint32_t P_BYTES = SPLIT > 1 ? WARP_ROWS *WARP_KEYS * 2 : 0;
	static constexpr uint32_t ROW_BYTES = SPLIT > 1 ? WARP_ROWS * 4 : 0;
	static constexpr uint32_t SHARED_BYTES = Q_BYTES + STAGES * (K_BYTES + V_BYTES) +
	                                         WARPS * (P_BYTES + ROW_BYTES);

	static_assert(SHARED_BYTES ==
	                      FA_SM80_SHARED_BYTES(DIM, DIM_V, WARPS, ATOMS, SPLIT, KEYS, STAGES),
	              "the host's table must agree");
	static_assert(STAGES == 2, "the schedule alternates between two");
	static_assert(DIM_V <= DIM, "O leaves through Q's shared memory");
	static_assert(KEYS % 16 == 0 && DIM % 16 == 0 && DIM_V % 16 == 0, "whole fragments");
	static_assert(SPLIT == 1 || (SPLIT == 2 && DIM_V % 64 == 0 && KEYS % 32 == 0 && ATOMS == 2),
	              "pairs divide groups of eight chunks");
};
