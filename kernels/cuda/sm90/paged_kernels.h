/*
 * Table of the sm_90a decode kernels over pages: paged_decode_rows.h and paged_codes.cu instantiate
 * the rows, paged-table.c makes the host's table. K's and V's rows have exactly dim elements.
 * docs/kernels.md says why these shapes. Decode: X(dim, atoms, groups, stages, blocks);
 * paged_config.h explains the columns.
 */
#pragma once

#define FA_SM90_PAGED_DECODE(X)                                                                    \
	X(64, 1, 3, 9, 1)                                                                          \
	X(64, 2, 2, 8, 1)                                                                          \
	X(128, 1, 1, 3, 1)                                                                         \
	X(128, 2, 1, 5, 1)                                                                         \
	X(256, 1, 1, 3, 1)

/* Decode over a client's own pages. At d64 three groups with one atom spill. */
#define FA_SM90_OWN_DECODE(X)                                                                      \
	X(64, 1, 2, 8, 1)                                                                          \
	X(64, 2, 2, 8, 1)                                                                          \
	X(128, 1, 1, 3, 1)                                                                         \
	X(128, 2, 1, 5, 1)                                                                         \
	X(256, 1, 1, 3, 1)

/* Whether such decode can plan for itself (common/own_plan.h); d256, and e4m3, would spill. */
#define FA_SM90_OWN_PLANS(dim) ((dim) < 256)

/* Partial results that a thread reduces at a time. Parts with many more are reduced in two levels
 * (paged_reduce.h). */
#define FA_SM90_PAGED_REDUCE_FANIN 16

/* Decode in pieces (common/paged_combine.h), with one atom where results must not depend on the
 * batch. */
#define FA_SM90_PAGED_PIECES(X)                                                                    \
	X(128, 1, 1, 4, 1)                                                                         \
	X(128, 2, 2, 4, 1)                                                                         \
	X(256, 1, 1, 3, 1)

/* Whether consumers take registers from the producer's warpgroup, which then has three idle warps:
 * two groups of two atoms at d128. */
#define FA_SM90_PAGED_SETMAXNREG(dim, atoms, groups) ((dim) * (atoms) * (groups) > 256)

/* With SETMAXNREG: parts of at most 16 rows are computed with one atom. */
#define FA_SM90_PAGED_ONE_ATOM 1
#define FA_SM90_PAGED_PRODUCER_REGISTERS 56
#define FA_SM90_PAGED_CONSUMER_REGISTERS 224
#define FA_SM90_PAGED_THREADS(dim, atoms, groups)                                                  \
	((groups)*128 + (FA_SM90_PAGED_SETMAXNREG(dim, atoms, groups) ? 128 : 32))

/* Whether the launch can append new tokens; two atoms at d64 leave no registers. */
#define FA_SM90_PAGED_APPENDS(dim, atoms) ((dim) != 64 || (atoms) == 1)

/* Limit of rows per item and KV head, for fa_paged_token_of(). */
#define FA_SM90_PAGED_ROWS_MAX (1 << 20)

/* Whether a block's first tiles are requested before all else, and how many: cold code behind a
 * jump is slow to fetch. Pieces have no registers for it. */
#define FA_SM90_PAGED_EARLY_LOADS(dim) ((dim) >= 128)
#define FA_SM90_PAGED_EARLY_TILES(dim) ((dim) == 256 ? 3 : 1)

/* Bytes of 16 tokens of K or V: a quarter of a tile. */
#define FA_SM90_PAGED_QUARTER(dim) (16 * (dim)*2)

/* If false, Q is in shared memory, where rows are Q_PITCH bytes apart. At d64 a thread's 128
 * registers are too few. */
#define FA_SM90_PAGED_Q_IN_REGISTERS(dim, atoms) ((dim) != 64 && (dim) * (atoms) <= 128)
#define FA_SM90_PAGED_Q_PITCH(dim) ((dim)*2 + 64)

/* As in sm80/paged_kernels.h. */
#define FA_SM90_PAGED_MERGE_COLUMNS(dim, atoms) ((dim) * (atoms) <= 128 ? (dim) : 64)
#define FA_SM90_PAGED_MERGE_PITCH(dim, atoms) (FA_SM90_PAGED_MERGE_COLUMNS(dim, atoms) + 8)

/* Rows that the warps merge at a time, with all columns; 0: they merge columns, as above. */
#define FA_SM90_PAGED_MERGE_ROWS(dim) ((dim) == 256 ? 4 : 0)

/* Size of fa_sm90_paged_config::SHARED. */
#define FA_SM90_PAGED_SHARED_BYTES(dim, atoms, groups, stages)                                     \
	((stages)*8 * FA_SM90_PAGED_QUARTER(dim) +                                                 \
	 (FA_SM90_PAGED_Q_IN_REGISTERS(dim, atoms) ? 0                                             \
	                                           : (atoms)*16 * FA_SM90_PAGED_Q_PITCH(dim)) +    \
	 (groups)*4 * (atoms)*16 * (FA_SM90_PAGED_MERGE_PITCH(dim, atoms) * 4 + 8) +               \
	 (groups)*4 * (atoms)*16 * 32 +                                                            \
	 (FA_SM90_PAGED_SETMAXNREG(dim, atoms, groups) ? (groups)*4 * 128 : 0) + 32 + (stages)*16)

/* Decode over quantised K and V (paged_codes.h): X(dim, atoms, groups, stages), for E4M3 and for
 * INT8. One thread block per SM. */
#define FA_SM90_CODES_DECODE(X)                                                                    \
	X(64, 1, 3, 12)                                                                            \
	X(64, 2, 2, 12)                                                                            \
	X(128, 1, 3, 9)                                                                            \
	X(128, 2, 2, 8)                                                                            \
	X(256, 1, 2, 4)

/* Consumer groups and the producers' warpgroup. */
#define FA_SM90_CODES_THREADS(groups) ((groups)*128 + 128)
#define FA_SM90_CODES_PRODUCER_REGISTERS(groups) 56
#define FA_SM90_CODES_CONSUMER_REGISTERS(groups) ((groups) == 3 ? 152 : 224)

#define FA_SM90_CODES_Q_IN_REGISTERS(dim, atoms) ((dim) * (atoms) <= 128)

/* As FA_SM90_PAGED_MERGE_COLUMNS and FA_SM90_PAGED_MERGE_PITCH. */
#define FA_SM90_CODES_MERGE_COLUMNS(atoms) (64 / (atoms))
#define FA_SM90_CODES_MERGE_PITCH(atoms) (64 / (atoms) + 16)

/* Size of fa_sm90_codes_config::SHARED. */
#define FA_SM90_CODES_SHARED_BYTES(dim, atoms, groups, stages)                                     \
	((stages) * (128 * (dim) + 512) + 2 * (atoms)*16 * ((dim)*2 + 32 + 4) +                    \
	 (groups)*4 * (atoms)*16 * (FA_SM90_CODES_MERGE_PITCH(atoms) * 4 + 8) + 32 + (stages)*16 + \
	 32 + 128)
