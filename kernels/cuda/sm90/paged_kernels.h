/*
 * The table of built sm_90a kernels over pages, as sm80/paged_kernels.h: read by the device
 * code, which instantiates a kernel from every row, and by paged-table.c.
 *
 * Decode: X(dim, atoms, stages, blocks); paged_config.h says what the numbers mean. K's and
 * V's rows have exactly dim elements.
 *
 * On an H200, bf16, 8 KV heads of 32 (us: this against the portable kernel against a bare read
 * of K and V):
 *   d128  11.7 / 16.2 / 5.2 for 1 x 1k, 17.9 / 21.2 / 11.9 for 8 x 1k, 131 / 137 / 122 for
 *         32 x 4k, 490 / 497 / 475 for 128 x 4k; 5 stages instead of 3 are slower by 0 to 5 us
 *   d256  18.5 / 25.6 / 6.1, 29.0 / 38.6 / 19.0, 254 / 268 / 239, 961 / 986 / 943
 * Not built: d64, where 4 warps do not keep up: 82 / 74 / 63 for 32 x 4k.
 */
#pragma once

#define FA_SM90_PAGED_DECODE(X)                                                                    \
	X(128, 1, 3, 1)                                                                            \
	X(128, 2, 5, 1)                                                                            \
	X(256, 1, 3, 1)

/* Decode in pieces (sm80/paged_pieces.h). */
#define FA_SM90_PAGED_PIECES(X)                                                                    \
	X(128, 2, 5, 1)                                                                            \
	X(256, 1, 3, 1)

/* A tile's quarter of K or of V. */
#define FA_SM90_PAGED_QUARTER(dim) (16 * (dim)*2)

/* Whether Q stays in registers, and else bytes from row to row in shared memory. */
#define FA_SM90_PAGED_Q_HELD(dim, atoms) ((dim) * (atoms) <= 128)
#define FA_SM90_PAGED_Q_PITCH(dim) ((dim)*2 + 64)

/* Columns of O that the warps bring together at a time, and floats from row to row. */
#define FA_SM90_PAGED_MERGE_COLUMNS(dim, atoms) ((dim) * (atoms) <= 128 ? (dim) : 64)
#define FA_SM90_PAGED_MERGE_PITCH(dim, atoms) (FA_SM90_PAGED_MERGE_COLUMNS(dim, atoms) + 8)

/* The ring of tiles, Q, what the warps bring together, each warp's facts, and barriers. */
#define FA_SM90_PAGED_SHARED_BYTES(dim, atoms, stages)                                             \
	((stages)*8 * FA_SM90_PAGED_QUARTER(dim) +                                                 \
	 (FA_SM90_PAGED_Q_HELD(dim, atoms) ? 0 : (atoms)*16 * FA_SM90_PAGED_Q_PITCH(dim)) +        \
	 4 * (atoms)*16 * (FA_SM90_PAGED_MERGE_PITCH(dim, atoms) * 4 + 8 + 32) + 16 + (stages)*16)
