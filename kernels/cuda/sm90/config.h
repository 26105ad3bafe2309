/*
 * Compile-time configuration of a forward kernel on wgmma.
 *   DIM, DIM_V  columns of Q and K, of V and O; columns past the tensor's width are zero
 *   GROUPS      consumer warpgroups of 64 query rows each; warpgroup 0 is the producer
 *   KEYS        per tile of K or V
 *   STAGES      of the K ring and of the V ring
 *   Q_SLOTS     Q tiles of 64 rows; more than GROUPS, so that the next block's arrive early
 *   PINGPONG    what consumer groups take turns with (enum fa_sm90_pingpong)
 *   BAND        rows see a window of keys (causal included)
 *   WINDOW      a narrow window, so a block has few tiles: groups skip tiles that their rows
 *               do not see, equally many each; launches yield between blocks of rows only
 *   SCORE_MOD   logits are modified (logits.h)
 *   SOFTCAP     SCORE_MOD with a soft cap always and ALiBi never
 *   LISTED      the producer says which tiles there are: a tile is two halves of 64 keys
 *               (masked_source.h); launches yield between blocks of rows only
 *   SOURCE      where rows and keys come from: dense_source.h, masked_source.h, paged_source.h or
 *               packed_source.h
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/sm90/kernels.h"

#include <stddef.h>
#include <stdint.h>
#include <type_traits>

/* What groups take turns with, so that tensor cores and exponentials overlap. */
enum fa_sm90_pingpong {
	FA_SM90_PINGPONG_GEMM,    /* issuing Q K^T */
	FA_SM90_PINGPONG_SOFTMAX, /* exponentials, where they take as long as products */
	FA_SM90_PINGPONG_NONE,    /* nothing: each group skips its own unseen tiles */
};

/* When a consumer reads the next stage's stop word (yield.h). */
enum fa_sm90_stop_read {
	FA_SM90_STOP_ON_DEMAND,
	/* These read it if the tile has arrived by then. */
	FA_SM90_STOP_BEFORE_EXP, /* before the tile's last exponentials */
	FA_SM90_STOP_AFTER_EXP,  /* after them */
};

struct fa_sm90_FULL {
	static constexpr bool BAND = false, WINDOW = false, SCORE_MOD = false, SOFTCAP = false;
};

struct fa_sm90_BAND {
	static constexpr bool BAND = true, WINDOW = false, SCORE_MOD = false, SOFTCAP = false;
};

struct fa_sm90_WINDOW {
	static constexpr bool BAND = true, WINDOW = true, SCORE_MOD = false, SOFTCAP = false;
};

struct fa_sm90_RICH {
	static constexpr bool BAND = true, WINDOW = false, SCORE_MOD = true, SOFTCAP = false;
};

struct fa_sm90_CAP {
	static constexpr bool BAND = true, WINDOW = false, SCORE_MOD = true, SOFTCAP = true;
};

/* True: a row's maximum is that of the first tile in which it sees a key (softmax.h). */
template <class T> struct fa_sm90_fixed_max {
	static constexpr bool value = false;
};

template <> struct fa_sm90_fixed_max<struct fa_bf16> {
	static constexpr bool value = true;
};

struct fa_sm90_PACKED : fa_sm90_BAND {
};

struct fa_sm90_PACKED_RAGGED : fa_sm90_PACKED {
};

struct fa_sm90_MASKED : fa_sm90_BAND {
};

struct fa_sm90_dense;

template <class T_, class KIND, int DIM_, int DIM_V_, int GROUPS_, int KEYS_, int STAGES_,
          int Q_SLOTS_, fa_sm90_pingpong PINGPONG_, class SOURCE_ = struct fa_sm90_dense>
struct fa_sm90_config {
	using T = T_;
	using SOURCE = SOURCE_;
	using ARGS = typename SOURCE::ARGS;
	static constexpr bool BAND = KIND::BAND, WINDOW = KIND::WINDOW, SCORE_MOD = KIND::SCORE_MOD;
	static constexpr bool SOFTCAP = KIND::SOFTCAP;
	static constexpr bool LISTED = std::is_same_v<KIND, fa_sm90_MASKED>;
	static constexpr bool PAGED = SOURCE::PAGED, PACKED = SOURCE::PACKED;
	/* What fa_sm90_epilogue() returns. */
	using CHECK = std::conditional_t<PACKED, uint32_t, bool>;
	/* Over pages, four groups have too few registers for overflow.h. */
	static constexpr bool FIXED_MAX = fa_sm90_fixed_max<T>::value && !(PAGED && GROUPS_ == 4);
	/* p of a row's maximum is 2^MAX_EXPONENT. With FIXED_MAX later logits may exceed it by up
	 * to 113. overflow.h scales down sums beyond SUM_HIGH. */
	static constexpr int MAX_EXPONENT = fa_sm90_fixed_max<T>::value && !SCORE_MOD ? -40 : 0;
	static constexpr float SUM_HIGH = SCORE_MOD ? 0x1p40f : 1;
	/* The block's first tile of keys goes first, as rows often have their greatest logits
	 * there; others follow from the last one backwards. */
	static constexpr bool FIRST_TILE_FIRST = FIXED_MAX && BAND && !SCORE_MOD && !WINDOW &&
	                                         PINGPONG_ != FA_SM90_PINGPONG_NONE;
	static constexpr int DIM = DIM_, DIM_V = DIM_V_;
	static constexpr int GROUPS = GROUPS_, THREADS = (GROUPS + 1) * 128;
	static constexpr int KEYS = KEYS_, STAGES = STAGES_, Q_SLOTS = Q_SLOTS_;
	static constexpr int GROUP_ROWS = FA_SM90_GROUP_ROWS, ROWS = GROUPS * GROUP_ROWS;
	static constexpr fa_sm90_pingpong PINGPONG = PINGPONG_;
	static constexpr bool INDEPENDENT = PINGPONG == FA_SM90_PINGPONG_NONE;
	/* Groups that skip tiles run up to one tile apart: two stages would load nothing ahead. */
	static constexpr bool SKIPS = INDEPENDENT || (WINDOW && STAGES > 2);
	/* YIELDS: the launch can be preempted (yield.h). Independent groups have no common tile to
	 * stop at. */
	static constexpr bool YIELDS = !INDEPENDENT, YIELDS_IN_BLOCK = YIELDS && !WINDOW && !LISTED;

	/* Registers of a thread: at first 65,536 / THREADS, rounded down to a multiple of 8; the
	 * producer gives some to the consumers. */
	static constexpr bool LOOKS_UP = PAGED || WINDOW || PACKED || LISTED;
	/* ALiBi is an extra step of Q K^T (alibi.h). */
	static constexpr bool ALIBI_MMA = SCORE_MOD && !SOFTCAP && !PAGED && DIM == 64;
	/* The producer reads the next block's descriptor early. */
	static constexpr bool LOOKAHEAD = PAGED && DIM == 128 && !(PACKED && SOURCE::PLANS);
	static constexpr bool SINKS = SCORE_MOD || WINDOW || !BAND || LISTED ||
	                              SOURCE::BAND_SINKS(DIM, KEYS);
	/* The ping-pong barrier's number is in a vector register, and a tile's valid rows are
	 * computed only to mask it. */
	static constexpr bool MASK_ON_DEMAND = PAGED && PINGPONG != FA_SM90_PINGPONG_SOFTMAX;
	static constexpr bool MASK_BITS = (PAGED && DIM == 128) || WINDOW || SCORE_MOD ||
	                                  (FIXED_MAX && !PAGED &&
	                                   PINGPONG == FA_SM90_PINGPONG_SOFTMAX);
	/* TUNED, STOP_READ, SIGNAL_STEPS and WAITS_LATE only change how ptxas schedules the main
	 * loop (docs/kernels.md). */
	static constexpr bool TUNED = YIELDS && !PAGED && (!SCORE_MOD || SOFTCAP);
	static constexpr fa_sm90_stop_read STOP_READ = ALIBI_MMA ? FA_SM90_STOP_BEFORE_EXP
	                                               : !TUNED || GROUPS == 4 || LISTED
	                                                       ? FA_SM90_STOP_ON_DEMAND
	                                               : GROUPS == 2 ? FA_SM90_STOP_BEFORE_EXP
	                                               : WINDOW || (BAND && !FIXED_MAX)
	                                                       ? FA_SM90_STOP_AFTER_EXP
	                                                       : FA_SM90_STOP_ON_DEMAND;
	static constexpr int SIGNAL_STEPS = ALIBI_MMA ? KEYS / 16 * 5 / 8
	                                    : TUNED && FIXED_MAX && !WINDOW && !SOFTCAP
	                                            ? KEYS / 16 * 5 / 8
	                                            : KEYS / 16 * 3 / 4;
	/* The ping-pong turn is awaited before the first half of the exponentials. The compiler
	 * moves the wait behind them, but not past SCORE_MOD's code. */
	static constexpr bool WAITS_LATE = SCORE_MOD || (TUNED && !BAND && !FIXED_MAX);
	static constexpr int PRODUCER_REGISTERS = GROUPS == 3  ? 32
	                                          : LISTED     ? 56
	                                          : !LOOKS_UP  ? 24
	                                          : GROUPS > 3 ? 32
	                                                       : 40;
	static constexpr int CONSUMER_REGISTERS = GROUPS == 4   ? 112
	                                          : GROUPS == 3 ? 160
	                                          : LISTED      ? 224
	                                          : LOOKS_UP    ? 232
	                                                        : 240;
	/* Another live register would spill: some state is recomputed per tile. */
	static constexpr bool FEW_REGISTERS = SCORE_MOD && GROUPS == 3;
	/* The soft cap's last step also subtracts the row's maximum. */
	static constexpr bool CAP_SUBTRACTS_MAX = SOFTCAP && FIXED_MAX;
	/* Dot products of a thread that softcap.h computes at a time, as independent chains. */
	static constexpr int CAP_CHUNK = FEW_REGISTERS            ? (KEYS < 128 ? 8 : 4)
	                                 : SOFTCAP && KEYS >= 128 ? 32
	                                                          : 16;
	static constexpr int CAP_CHAINS = CAP_SUBTRACTS_MAX && DIM == 64 ? 2 : 1;
	static_assert(PRODUCER_REGISTERS + GROUPS * CONSUMER_REGISTERS <=
	                      65536 / THREADS / 8 * 8 * (GROUPS + 1),
	              "setmaxnreg would wait for ever");

	/* Columns of 64 elements (128 bytes) with all rows, in TMA's 128-byte swizzle. The last may
	 * be half used. */
	static constexpr int COLUMN = 64, COLUMN_BYTES = 128;
	static constexpr int COLUMNS = (DIM + 63) / COLUMN, COLUMNS_V = (DIM_V + 63) / COLUMN;
	static constexpr uint32_t Q_COLUMN = GROUP_ROWS * COLUMN_BYTES;
	static constexpr uint32_t KV_COLUMN = KEYS * COLUMN_BYTES;
	static constexpr uint32_t Q_BYTES = COLUMNS * Q_COLUMN;
	static constexpr uint32_t K_BYTES = COLUMNS * KV_COLUMN;
	static constexpr uint32_t V_BYTES = COLUMNS_V * KV_COLUMN;

	/* Dynamic shared memory. Tiles start on 1024 bytes for the swizzle. */
	struct SHARED {
		uint8_t q[Q_SLOTS][Q_BYTES];
		uint8_t k[STAGES][K_BYTES];
		uint8_t v[STAGES][V_BYTES];
		uint8_t alibi_k[ALIBI_MMA ? KV_COLUMN : 0];
		uint8_t alibi_q[ALIBI_MMA ? Q_COLUMN : 0];
		uint32_t lists[LISTED ? 2 : 0][3][256];           /* masked_load.h */
		uint32_t row_lists[LISTED ? GROUPS * 4 : 0][256]; /* masked_sight.h */

		/* mbarriers. FULL: one producer thread arrives with the transaction bytes; the
		 * tile's consumers wait. EMPTY: lane 0 of each consumer warp arrives; producer
		 * warps wait. Q's: one group, 4 EMPTY arrivals, once per block of rows. K's and
		 * V's: all groups, 4 * GROUPS arrivals, once per tile. k_full also gets an
		 * arrival without bytes where no tile comes (yield.h). */
		uint64_t q_full[Q_SLOTS], q_empty[Q_SLOTS];
		uint64_t k_full[STAGES], k_empty[STAGES];
		uint64_t v_full[STAGES], v_empty[STAGES];

		/* LISTED. Lists of a block of rows: lane 0 of the warp that reads them arrives at
		 * list_full, lane 0 of the warp that loads tiles at list_empty. */
		uint64_t list_full[LISTED ? 2 : 0], list_empty[LISTED ? 2 : 0];
		uint32_t halves[LISTED ? STAGES : 0][2]; /* of K's tile */
		uint32_t lists_end[LISTED ? 1 : 0];      /* no more lists are wanted */

		/* State of yield.h. */
		alignas(16) struct fa_cuda_preempt_record record;
		uint32_t exits;       /* exit at once */
		uint32_t state_slot;  /* slot of the stopped block's state */
		uint32_t blocks_done; /* blocks of rows finished, */
		/* 1 + tiles left of the next block of rows; 0: did not stop. */
		uint32_t tiles_left;
		uint32_t nonfinite;    /* rows must be recomputed */
		uint32_t stop[STAGES]; /* enum fa_sm90_stop_kind, or 0 */
	};

	static constexpr uint32_t Q_AT = offsetof(SHARED, q), K_AT = offsetof(SHARED, k);
	static constexpr uint32_t V_AT = offsetof(SHARED, v);
	static constexpr uint32_t ALIBI_K_AT = offsetof(SHARED, alibi_k);
	static constexpr uint32_t ALIBI_Q_AT = offsetof(SHARED, alibi_q);
	static constexpr uint32_t Q_FULL = offsetof(SHARED, q_full);
	static constexpr uint32_t Q_EMPTY = offsetof(SHARED, q_empty);
	static constexpr uint32_t K_FULL = offsetof(SHARED, k_full);
	static constexpr uint32_t K_EMPTY = offsetof(SHARED, k_empty);
	static constexpr uint32_t V_FULL = offsetof(SHARED, v_full);
	static constexpr uint32_t V_EMPTY = offsetof(SHARED, v_empty);
	static constexpr uint32_t LISTS_AT = offsetof(SHARED, lists);
	static constexpr uint32_t ROW_LISTS_AT = offsetof(SHARED, row_lists);
	static constexpr uint32_t LIST_FULL = offsetof(SHARED, list_full);
	static constexpr uint32_t LIST_EMPTY = offsetof(SHARED, list_empty);
	static constexpr uint32_t HALVES = offsetof(SHARED, halves);
	static constexpr uint32_t LISTS_END = offsetof(SHARED, lists_end);
	static constexpr uint32_t RECORD = offsetof(SHARED, record);
	static constexpr uint32_t EXITS = offsetof(SHARED, exits);
	static constexpr uint32_t STATE_SLOT = offsetof(SHARED, state_slot);
	static constexpr uint32_t BLOCKS_DONE = offsetof(SHARED, blocks_done);
	static constexpr uint32_t TILES_LEFT = offsetof(SHARED, tiles_left);
	static constexpr uint32_t NONFINITE = offsetof(SHARED, nonfinite);
	static constexpr uint32_t STOP = offsetof(SHARED, stop);
	static constexpr uint32_t WORDS_END = STOP + sizeof(SHARED::stop);

	/*
	 * Named barriers; 0 is __syncthreads() and, at the end, all consumers once.
	 *  - group_barrier: the group's 128 threads sync, after they zeroed rows of V and around
	 * their writes of ALiBi's operand.
	 *  - pingpong_barrier: once per tile, the group's 128 threads sync, the previous group's
	 * arrive.
	 *  - producers_barrier: producer warps sync before each tile if the launch can yield.
	 */
	static __device__ __forceinline__ uint32_t group_barrier(uint32_t group)
	{
		return 1 + group;
	}

	static __device__ __forceinline__ uint32_t pingpong_barrier(uint32_t group)
	{
		return 1 + GROUPS + group;
	}

	static __device__ __forceinline__ uint32_t producers_barrier(void)
	{
		return 1 + 2 * GROUPS;
	}

	static constexpr uint32_t SHARED_BYTES = FA_SM90_SHARED_BYTES(DIM, DIM_V, KEYS, STAGES,
	                                                              Q_SLOTS) +
	                                         ALIBI_MMA * FA_SM90_EXTRA_BYTES_RICH(DIM, KEYS) +
	                                         LISTED * FA_SM90_LIST_BYTES;
	static_assert(Q_FULL == SHARED_BYTES - FA_SM90_BARRIER_BYTES &&
	                      sizeof(SHARED) <= SHARED_BYTES,
	              "the layout is what the host plans");
	static_assert(DIM % 32 == 0 && DIM_V % 32 == 0 && KEYS % 32 == 0, "whole wgmma tiles");
	static_assert(KEYS <= 256 && KV_COLUMN % 1024 == 0,
	              "a tile column is one TMA box on 1024 bytes");
	static_assert(GROUPS > 1 && 2 * GROUPS < 15,
	              "ping-pong needs two groups, and 15 named barriers exist");
	static_assert(Q_SLOTS >= GROUPS, "every group has a Q slot");
	static_assert(!LISTED || (GROUPS == 2 && KEYS == 128 && YIELDS),
	              "a tile is two halves, and a block of rows has at most two lists");

	/* WINDOW: tiles that the previous block does not see. */
	static constexpr int NEW_TILES = (ROWS + KEYS - 1) / KEYS;
	/* No slot is free for the next block's Q: slots are released as soon as the block's last
	 * Q K^T is done. */
	static constexpr bool ONE_Q = Q_SLOTS == GROUPS;
	/* Q_EARLY: groups whose Q of the next block is loaded before that block's first K. With few
	 * slots the others' comes later. */
	static constexpr bool LATE_Q = WINDOW || (BAND && !SCORE_MOD && DIM == 256) || ONE_Q;
	static constexpr int Q_EARLY = LATE_Q && Q_SLOTS < 2 * GROUPS ? Q_SLOTS - GROUPS : GROUPS;
	/* Tiles skipped between two blocks, at most. The first group skips only last tiles, the
	 * last group only first ones. */
	static constexpr int SKIPS_MAX = (GROUPS > 2 ? 2 : 1) *
	                                 (((GROUPS - 1) * GROUP_ROWS + KEYS - 1) / KEYS);
	static_assert(!WINDOW || !INDEPENDENT, "WINDOW gives all groups equally many tiles");
	static_assert(!WINDOW || !SKIPS || SKIPS_MAX < STAGES,
	              "V arrives a tile after K, so skipped tiles must leave a stage");
};
