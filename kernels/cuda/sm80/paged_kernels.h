/*
 * The table of kernels over pages, as kernels.h; paged-table.c reads it. Decode: X(dim, dim_v,
 * atoms, warps, stages), as in paged_load.h. Of each shape the first is for chips with 227 KiB of
 * shared memory per block, the second for those with 99.
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
	X(256, 256, 1, 2, 2)                                                                       \
	X(576, 256, 1, 2, 2)                                                                       \
	X(576, 256, 1, 1, 2)

/* Head dims above 256 are only for chips with 163 KiB. */
#define FA_SM80_PAGED_DECODE_F32(X)                                                                \
	X(64, 64, 1, 8, 3)                                                                         \
	X(64, 64, 1, 4, 2)                                                                         \
	X(128, 128, 1, 4, 3)                                                                       \
	X(128, 128, 1, 2, 2)                                                                       \
	X(256, 128, 1, 4, 2)                                                                       \
	X(256, 128, 1, 1, 3)                                                                       \
	X(576, 128, 1, 1, 2)

/* Rows for FA_CUDA_PAGED_SPLIT (common/paged_combine.h); for fp32, all rows of decode. */
#define FA_SM80_PAGED_SPLIT(X)                                                                     \
	X(64, 64, 2, 8, 4)                                                                         \
	X(64, 64, 2, 4, 4)                                                                         \
	X(128, 128, 2, 8, 3)                                                                       \
	X(128, 128, 2, 4, 2)                                                                       \
	X(256, 256, 1, 4, 3)                                                                       \
	X(256, 256, 1, 2, 2)                                                                       \
	X(576, 256, 1, 2, 2)                                                                       \
	X(576, 256, 1, 1, 2)

#define FA_SM80_PAGED_PITCH(dim, bytes) ((dim) * (bytes) + ((bytes) == 4 ? 16 : 0))

/* Columns of O that the warps merge at a time, and floats from row to row. */
#define FA_SM80_PAGED_MERGE_COLUMNS(atoms) (32 / (atoms))
#define FA_SM80_PAGED_MERGE_PITCH(atoms) (32 / (atoms) + 8)

/* The warps' rings of strips, Q, the merge area, and the rows' info. */
#define FA_SM80_PAGED_SHARED_BYTES(dim, dim_v, atoms, warps, stages, bytes)                        \
	((warps) * (stages)*16 * (FA_SM80_PAGED_PITCH(dim, bytes) + (dim_v) * (bytes)) +           \
	 (atoms)*16 * FA_SM80_PAGED_PITCH(dim, bytes) +                                            \
	 (warps) * (atoms)*16 * (FA_SM80_PAGED_MERGE_PITCH(atoms) * 4 + 8) + (atoms)*16 * 32)

/* Decode of quantised pages: X(dim, dim_v, atoms, warps, stages) for each store
 * (paged_decode_quantised.h). As above, the second of a shape is for 99 KiB. */
#define FA_SM80_QUANTISED_DECODE(X)                                                                \
	X(64, 64, 1, 8, 6)                                                                         \
	X(64, 64, 1, 4, 6)                                                                         \
	X(64, 64, 2, 8, 6)                                                                         \
	X(64, 64, 2, 4, 4)                                                                         \
	X(128, 128, 1, 8, 4)                                                                       \
	X(128, 128, 1, 4, 3)                                                                       \
	X(128, 128, 2, 8, 4)                                                                       \
	X(128, 128, 2, 4, 3)                                                                       \
	X(256, 256, 1, 4, 4)                                                                       \
	X(256, 256, 1, 2, 4)                                                                       \
	X(640, 256, 1, 2, 4)                                                                       \
	X(640, 256, 1, 1, 4)

/* As above, with the tokens' scales in the rings, and the rows' factors. */
#define FA_SM80_QUANTISED_SHARED_BYTES(dim, dim_v, atoms, warps, stages)                           \
	((warps) * (stages) * (16 * ((dim) + (dim_v)) + 128) + (atoms)*16 * (dim)*2 +              \
	 (warps) * (atoms)*16 * (FA_SM80_PAGED_MERGE_PITCH(atoms) * 4 + 8) + (atoms)*16 * 36)

/* The rows of FA_SM80_FORWARD that are also built over pages. */
#define FA_SM80_PAGED_FORWARD(X)                                                                   \
	X(band, BAND, 64, 64, 4, 2, 1, 128, 2, 2)                                                  \
	X(rich, RICH, 64, 64, 4, 2, 1, 64, 2, 2)                                                   \
	X(band, BAND, 128, 128, 4, 2, 1, 64, 2, 2)                                                 \
	X(rich, RICH, 128, 128, 4, 2, 1, 32, 2, 2)                                                 \
	X(band, BAND, 256, 256, 8, 2, 2, 64, 2, 1)                                                 \
	X(rich, RICH, 256, 256, 4, 1, 1, 32, 2, 2)                                                 \
	FA_SM80_FORWARD_WIDE(X)
