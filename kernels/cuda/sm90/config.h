/*
 * Shape of a forward kernel on wgmma: its tiles, its shared memory, its barriers.
 *   DIM, DIM_V  columns of Q and K, of V and O; what a tensor lacks is zero
 *   GROUPS      warpgroups that compute, 64 rows each. One more loads
 *   KEYS        of a tile of K and V
 *   STAGES      tiles of K and V in shared memory
 *   Q_SLOTS     groups' rows of Q in shared memory: more than GROUPS, so that those of the
 *               next block come in time
 *   TURNS       groups take turns, so that one has the tensor cores while others compute
 *               exponentials: to issue their dot products, or, where exponentials take
 *               as long as products, to compute them. Or they go their own ways (APART),
 *               and each leaves out the tiles that none of its own rows sees
 *   BAND        rows see a window of keys (causal is one), not all of them
 *   WINDOW      it is a narrow one, so that a block has few tiles: if there is room, groups
 *               leave out those that none of their own rows sees, as many each, so that
 *               turns go on; what the next block begins with is fetched to L2 in time;
 *               launches end early between blocks of rows only
 *   RICH        logits are more than scaled dot products: rich.h
 *   CAP         of that a soft cap, always, and no ALiBi
 *   SOURCE      where rows and keys come from: dense.h or pages.h
 */
#pragma once

#include "kernels/cuda/sm90/kernels.h"

#include <stdint.h>

enum fa_sm90_turns {
	FA_SM90_PRODUCTS,
	FA_SM90_EXPONENTIALS,
	FA_SM90_APART
};

/* When a group reads whether there is a next tile (yield.h). */
enum fa_sm90_stop_known {
	FA_SM90_STOP_ASKED, /* when it needs the tile */
	/* before that, if the tile is there by then: */
	FA_SM90_STOP_BEFORE, /* the last exponentials of the tile before it */
	FA_SM90_STOP_BEHIND, /* or behind them */
};

struct fa_sm90_FULL {
	static constexpr bool BAND = false, WINDOW = false, RICH = false, CAP = false;
};

struct fa_sm90_BAND {
	static constexpr bool BAND = true, WINDOW = false, RICH = false, CAP = false;
};

struct fa_sm90_WINDOW {
	static constexpr bool BAND = true, WINDOW = true, RICH = false, CAP = false;
};

struct fa_sm90_RICH {
	static constexpr bool BAND = true, WINDOW = false, RICH = true, CAP = false;
};

struct fa_sm90_CAP {
	static constexpr bool BAND = true, WINDOW = false, RICH = true, CAP = true;
};

/* Whether maxima are those of the first tile: see softmax.h. */
template <class T> struct fa_sm90_lazy {
	static constexpr bool value = false;
};

template <> struct fa_sm90_lazy<struct fa_bf16> {
	static constexpr bool value = true;
};

struct fa_sm90_dense;

template <class T_, class KIND, int DIM_, int DIM_V_, int GROUPS_, int KEYS_, int STAGES_,
          int Q_SLOTS_, fa_sm90_turns TURNS_, class SOURCE_ = struct fa_sm90_dense>
struct fa_sm90_config {
	using T = T_;
	using SOURCE = SOURCE_;
	using ARGS = typename SOURCE::ARGS;
	static constexpr bool BAND = KIND::BAND, WINDOW = KIND::WINDOW, RICH = KIND::RICH;
	static constexpr bool CAP = KIND::CAP;
	static constexpr bool LAZY = fa_sm90_lazy<T>::value;
	static constexpr int DIM = DIM_, DIM_V = DIM_V_;
	static constexpr int GROUPS = GROUPS_, THREADS = (GROUPS + 1) * 128;
	static constexpr int KEYS = KEYS_, STAGES = STAGES_, Q_SLOTS = Q_SLOTS_;
	static constexpr int GROUP_ROWS = FA_SM90_GROUP_ROWS, ROWS = GROUPS * GROUP_ROWS;
	static constexpr fa_sm90_turns TURNS = TURNS_;
	static constexpr bool APART = TURNS == FA_SM90_APART;
	/* A group that leaves out the first tile is one ahead of others from there on, and one of
	 * the STAGES is for them: of two, none would be left to load ahead. */
	static constexpr bool SKIPS = APART || (WINDOW && STAGES > 2);
	/* Launches can end early: yield.h. Where groups go their own ways there is no tile before
	 * which all would stop, and their blocks are short. */
	static constexpr bool YIELDS = !APART, YIELDS_INSIDE = YIELDS && !WINDOW;

	/* Registers of a thread. All have as many at first, 65,536 / THREADS rounded down to
	 * eights; what those who load give, the others can take. Those who look up pages,
	 * or what comes next, need more. */
	static constexpr bool PAGED = SOURCE::PAGED;
	static constexpr bool LOOKS_UP = PAGED || WINDOW;
	/* ALiBi by products: slope.h. */
	static constexpr bool SLOPES = RICH && !CAP && !PAGED && DIM == 64;
	/* Over pages, what the list and its request say of the next block is read while there is
	 * something of this one to be computed; with the words below 0.967 of a dense kernel's rate
	 * after 0.936 for 8 x 1k at d128 (a race on an H200). At d64 it is slower. */
	static constexpr bool COMING = PAGED && DIM == 128;
	/* Over pages, groups that take turns with products find a turn's barrier in vector registers,
	 * and ask for a tile's own rows where it is masked alone: 0.966 of a dense kernel's rate after
	 * 0.96 at d128. With turns of exponentials, d64, that is slower, 0.949 after 0.991; with none,
	 * d64 while sequences are short, 0.97 after 0.965. */
	static constexpr bool ASKS_MASK = PAGED && TURNS != FA_SM90_EXPONENTIALS;
	/* How tiles are masked, fa_sm90_mask_row(): with words causal at 4k has 493 TFLOP/s after 479 at
	 * d64, but 702 after 704 at d128 and the full kernels of d128 and d256 0.6 and 0.3 % less (bf16,
	 * one race on an H100). fp16, the short kernel and other pages have not been raced. */
	static constexpr bool MASK_WORDS = COMING || WINDOW || RICH ||
	                                   (LAZY && !PAGED && TURNS == FA_SM90_EXPONENTIALS);
	/*
	 * What makes no difference but for the order that ptxas puts the loop's instructions in.
	 * Each way is the best of those raced, in TFLOP/s on an H100 (causal at 4k unless it says
	 * otherwise); of an H200 bench/results/RESULTS.md has what came of it, for d64 full at 16k 636
	 * after 623, causal 497 after 481, a window of 1,024 415 after 387, fp16 456 after 441:
	 *   d64   bf16    the turn is passed after 5/8 of the exponentials, not 3/4: full at 16k 639
	 *                 after 627 TFLOP/s, causal 500 after 489; the word read behind them 467
	 *         window  read behind them: of 1,024 keys 415 after 388, of 4,096 510 after 456
	 *         fp16    read behind them: 459 after 446; full, where that is worth 0.6 %, waits
	 *                 for its turn behind the first half of the exponentials: 538 after 518
	 *   d128  read before: 711 after 708, fp16 642 after 639
	 *   soft caps  the same: d64 323 after 322, d128 512 after 509
	 *   ALiBi at d64  read before, and the turn passed after 5/8: 1.008 times what it is with the
	 *                 word read when the tile is needed and the turn passed after 3/4 (an H200)
	 */
	static constexpr bool TUNED = YIELDS && !PAGED && (!RICH || CAP);
	static constexpr fa_sm90_stop_known STOP_KNOWN = SLOPES ? FA_SM90_STOP_BEFORE
	                                                 : !TUNED || GROUPS == 4
	                                                         ? FA_SM90_STOP_ASKED
	                                                 : GROUPS == 2 ? FA_SM90_STOP_BEFORE
	                                                 : WINDOW || (BAND && !LAZY)
	                                                         ? FA_SM90_STOP_BEHIND
	                                                         : FA_SM90_STOP_ASKED;
	static constexpr int TURN_STEPS = SLOPES                             ? KEYS / 16 * 5 / 8
	                                  : TUNED && LAZY && !WINDOW && !CAP ? KEYS / 16 * 5 / 8
	                                                                     : KEYS / 16 * 3 / 4;
	/* Plain ones wait for their turn behind the first half of exponentials, where the
	 * compiler puts it; with as much code before as RICH has it would not. */
	static constexpr bool TURN_LATE = RICH || (TUNED && !BAND && !LAZY);
	static constexpr int LOADER_REGISTERS = GROUPS == 3  ? 32
	                                        : !LOOKS_UP  ? 24
	                                        : GROUPS > 3 ? 32
	                                                     : 40;
	static constexpr int GROUP_REGISTERS = GROUPS == 4   ? 112
	                                       : GROUPS == 3 ? 160
	                                       : LOOKS_UP    ? 232
	                                                     : 240;
	/* One more and they spill: whether a row has no maximum yet is asked for every tile or,
	 * where that is not kept, whether the next tile is there where it is needed. */
	static constexpr bool FEW_REGISTERS = RICH && GROUPS == 3;
	/* Logits of rows that have a maximum come without it: the soft cap's last step takes it off. */
	static constexpr bool LOWERS = CAP && LAZY;
	/* Dots of a thread that softcap.h has in hand together, and how many chains of instructions
	 * look at them. */
	static constexpr int CAP_PART = FEW_REGISTERS        ? (KEYS < 128 ? 8 : 4)
	                                : CAP && KEYS >= 128 ? 32
	                                                     : 16;
	static constexpr int CAP_CHAINS = LOWERS && DIM == 64 ? 2 : 1;
	static_assert(LOADER_REGISTERS + GROUPS * GROUP_REGISTERS <=
	                      65536 / THREADS / 8 * 8 * (GROUPS + 1),
	              "nobody waits for registers for ever");

	/*
	 * Tiles are columns of 64 elements (128 bytes), the last of which may be half
	 * used, each column all of the tile's rows, as a TMA box puts them and wgmma reads
	 * them. Each group has its own of Q.
	 */
	static constexpr int COLUMN = 64, COLUMN_BYTES = 128;
	static constexpr int COLUMNS = (DIM + 63) / COLUMN, COLUMNS_V = (DIM_V + 63) / COLUMN;
	static constexpr uint32_t Q_COLUMN = GROUP_ROWS * COLUMN_BYTES;
	static constexpr uint32_t KV_COLUMN = KEYS * COLUMN_BYTES;
	static constexpr uint32_t Q_BYTES = COLUMNS * Q_COLUMN;
	static constexpr uint32_t K_BYTES = COLUMNS * KV_COLUMN;
	static constexpr uint32_t V_BYTES = COLUMNS_V * KV_COLUMN;

	static constexpr uint32_t Q_AT = 0;
	static constexpr uint32_t K_AT = Q_AT + Q_SLOTS * Q_BYTES;
	static constexpr uint32_t V_AT = K_AT + STAGES * K_BYTES;
	static constexpr uint32_t PLACES_AT = V_AT + STAGES * V_BYTES;
	static constexpr uint32_t SLOPES_AT = PLACES_AT + SLOPES * KV_COLUMN;
	static constexpr uint32_t BARRIERS_AT = SLOPES_AT + SLOPES * Q_COLUMN;
	static constexpr uint32_t SHARED_BYTES = BARRIERS_AT + FA_SM90_BARRIER_BYTES;

	/*
	 * Barriers, 8 bytes each. One thread of the loaders arrives at a _FULL with the
	 * bytes of its copies, those wait who compute with them; at an _EMPTY each warp of
	 * those arrives, the loading warp waits. Q's are a group's, once per block of rows,
	 * K's and V's are all groups', once per tile.
	 */
	static constexpr uint32_t Q_FULL = BARRIERS_AT, Q_EMPTY = Q_FULL + 8 * Q_SLOTS;
	static constexpr uint32_t K_FULL = Q_EMPTY + 8 * Q_SLOTS, K_EMPTY = K_FULL + 8 * STAGES;
	static constexpr uint32_t V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES;
	static constexpr uint32_t BARRIERS_END = V_EMPTY + 8 * STAGES;

	/*
	 * Words of yield.h. RECORD: what this block of threads goes on with (16 bytes). ENDS:
	 * it does not even begin. STOP: of each stage, whether no tile comes there, as it has
	 * stopped before, or has ended. If it has stopped SLOT is for its state; BEGUN and LEFT
	 * are its blocks of rows before this one, and 1 more than the tiles that are left of
	 * this. BROKEN: it has rows to compute again.
	 */
	static constexpr uint32_t RECORD = BARRIERS_END, ENDS = RECORD + 16, SLOT = ENDS + 4;
	static constexpr uint32_t BEGUN = SLOT + 4, LEFT = BEGUN + 4, BROKEN = LEFT + 4;
	static constexpr uint32_t STOP = BROKEN + 4, WORDS_END = STOP + 4 * STAGES;

	/*
	 * Named barriers: of a group's 128 threads among themselves, where they have
	 * cleared the tail of V; a group's turn, once a tile: all of it wait, all of the
	 * group before it arrive; and of the warps that load, if there are several and launches
	 * yield, before a tile.
	 */
	static __device__ __forceinline__ uint32_t group_barrier(uint32_t group)
	{
		return 1 + group;
	}

	static __device__ __forceinline__ uint32_t turn_barrier(uint32_t group)
	{
		return 1 + GROUPS + group;
	}

	static __device__ __forceinline__ uint32_t loaders_barrier(void)
	{
		return 1 + 2 * GROUPS;
	}

	static_assert(SHARED_BYTES == FA_SM90_SHARED_BYTES(DIM, DIM_V, KEYS, STAGES, Q_SLOTS) +
	                                      SLOPES * FA_SM90_SLOPES_BYTES_RICH(DIM, KEYS),
	              "the host's table must agree");
	static_assert(BARRIERS_END % 16 == 0 && WORDS_END <= SHARED_BYTES, "barriers fit");
	static_assert(DIM % 32 == 0 && DIM_V % 32 == 0 && KEYS % 32 == 0, "whole products");
	static_assert(KEYS <= 256 && KV_COLUMN % 1024 == 0, "a box of TMA's, on 1024 bytes");
	static_assert(GROUPS > 1 && 2 * GROUPS < 15, "several take turns, at barriers that exist");
	static_assert(Q_SLOTS >= GROUPS, "every group has rows");

	/* WINDOW: tiles of K and V that a block sees and the one before it does not. */
	static constexpr int NEW_TILES = (ROWS + KEYS - 1) / KEYS;
	/* Groups whose rows of the next block have a place before this block's have been read. The
	 * others' are not to hold up K and V: at d256, a window of 1,024 keys at 16k has 592.7 TFLOP/s
	 * after 581.5, causal at 4k 726 after 722 (H200), but a full kernel 841.6 after 844.7; 8 x 1k
	 * over pages has 0.962 of dense after 0.944 (RESULTS.md). */
	static constexpr bool LATE_Q = WINDOW || (BAND && !RICH && DIM == 256);
	static constexpr int Q_FIRST = LATE_Q && Q_SLOTS < 2 * GROUPS ? Q_SLOTS - GROUPS : GROUPS;
	/* What is left out where one block ends and the next begins: the first group leaves out
	 * last tiles alone, the last group first ones. */
	static constexpr int SKIPS_MAX = (GROUPS > 2 ? 2 : 1) *
	                                 (((GROUPS - 1) * GROUP_ROWS + KEYS - 1) / KEYS);
	static_assert(!WINDOW || !APART, "groups have as many tiles");
	static_assert(!WINDOW || !SKIPS || SKIPS_MAX < STAGES, "V waits for the next K");
};
