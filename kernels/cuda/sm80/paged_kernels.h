/*
 * The table of built kernels over pages, as kernels.h: read by the device code, which
 * instantiates a kernel from every row, and by paged-table.c.
 *
 * Decode: X(dim, dim_v, atoms, warps, stages); paged_decode.h says what the numbers mean.
 * The first of a shape is for chips with 227 KiB of shared memory to a block, the second
 * for those with 99.
 */
#pragma once

#include "kernels/cuda/sm80/kernels.h"

#define FA_SM80_PAGED_DECODE(X)                                                                    \
	X(64, 64, 1, 8, 4)                                                                         \
	X(64, 64, 1, 4, 4)                                                                         \
	X(64, 64, 2, 8, 4)                                                                         \
	X(64, 64, 2, 4, 4)                                                                         \
	X(128, 128, 1, 8, 3)                                                                       \
	X(128, 128, 1, 4, 2)                                                                       \
	X(128, 128, 2, 8, 3)                                                                       \
	X(128, 128, 2, 4, 2)                                                                       \
	X(256, 256, 1, 4, 3)                                                                       \
	X(256, 256, 1, 2, 2)

#define FA_SM80_PAGED_DECODE_F32(X)                                                                \
	X(64, 64, 1, 8, 3)                                                                         \
	X(64, 64, 1, 4, 2)                                                                         \
	X(128, 128, 1, 4, 3)                                                                       \
	X(128, 128, 1, 2, 2)                                                                       \
	X(256, 128, 1, 4, 2)                                                                       \
	X(256, 128, 1, 1, 3)

/* Decode in pieces (paged_pieces.h); of fp32 all rows are built so as well. */
#define FA_SM80_PAGED_PIECES(X)                                                                    \
	X(64, 64, 2, 8, 4)                                                                         \
	X(64, 64, 2, 4, 4)                                                                         \
	X(128, 128, 2, 8, 3)                                                                       \
	X(128, 128, 2, 4, 2)                                                                       \
	X(256, 256, 1, 4, 3)                                                                       \
	X(256, 256, 1, 2, 2)

/* Rows of K (and Q) in shared memory: fp32 is padded, 16-bit elements are swizzled. */
#define FA_SM80_PAGED_PITCH(dim, bytes) ((dim) * (bytes) + ((bytes) == 4 ? 16 : 0))

/* Columns of O that the warps bring together at a time, and floats from row to row. */
#define FA_SM80_PAGED_MERGE_COLUMNS(atoms) (32 / (atoms))
#define FA_SM80_PAGED_MERGE_PITCH(atoms) (32 / (atoms) + 8)

/* The warps' rings of strips, Q, what the warps bring together, and a row's facts. */
#define FA_SM80_PAGED_SHARED_BYTES(dim, dim_v, atoms, warps, stages, bytes)                        \
	((warps) * (stages)*16 * (FA_SM80_PAGED_PITCH(dim, bytes) + (dim_v) * (bytes)) +           \
	 (atoms)*16 * FA_SM80_PAGED_PITCH(dim, bytes) +                                            \
	 (warps) * (atoms)*16 * (FA_SM80_PAGED_MERGE_PITCH(atoms) * 4 + 8) + (atoms)*16 * 32)

/*
 * Decode of codes: X(dim, atoms, warps, stages) for each kind of them; paged_codes.h. As
 * above, the second of a shape is for chips with 99 KiB of shared memory to a block.
 */
#define FA_SM80_CODES_DECODE(X)                                                                    \
	X(64, 1, 8, 6)                                                                             \
	X(64, 1, 4, 6)                                                                             \
	X(64, 2, 8, 6)                                                                             \
	X(64, 2, 4, 4)                                                                             \
	X(128, 1, 8, 4)                                                                            \
	X(128, 1, 4, 3)                                                                            \
	X(128, 2, 8, 4)                                                                            \
	X(128, 2, 4, 3)                                                                            \
	X(256, 1, 4, 4)                                                                            \
	X(256, 1, 2, 4)

/* The warps' rings of strips and their tokens' scales, Q, what the warps bring together, a
 * row's facts and its factor. */
#define FA_SM80_CODES_SHARED_BYTES(dim, atoms, warps, stages)                                      \
	((warps) * (stages) * (32 * (dim) + 128) + (atoms)*16 * (dim)*2 +                          \
	 (warps) * (atoms)*16 * (FA_SM80_PAGED_MERGE_PITCH(atoms) * 4 + 8) + (atoms)*16 * 36)

/*
 * Forward: the rows of FA_SM80_FORWARD that are built over pages as well, X as there.
 */
#define FA_SM80_PAGED_FORWARD(X)                                                                   \
	X(band, BAND, 64, 64, 4, 2, 1, 128, 2, 2)                                                  \
	X(rich, RICH, 64, 64, 4, 2, 1, 64, 2, 2)                                                   \
	X(band, BAND, 128, 128, 4, 2, 1, 64, 2, 2)                                                 \
	X(rich, RICH, 128, 128, 4, 2, 1, 32, 2, 2)                                                 \
	X(band, BAND, 256, 256, 8, 2, 2, 64, 2, 1)                                                 \
	X(rich, RICH, 256, 256, 4, 1, 1, 32, 2, 2)
