/*
 * The table of sm_80 kernels: *_rows.h instantiates a kernel from every row, and table.c lists it
 * for the host. For 16-bit operands: X(kind, KIND, dim, dim_v, warps, atoms, split, keys, stages,
 * blocks), see config.h. FULL computes every (row, key) pair, BAND a window of any shape, both with
 * a positive scale and 16-byte aligned rows; RICH everything, also on chips with 99 KiB of shared
 * memory.
 */
#pragma once

/* Head dims above 256; the second for chips with 99 KiB. */
#define FA_SM80_FORWARD_WIDE(X)                                                                    \
	X(rich, RICH, 576, 256, 4, 1, 1, 16, 2, 1)                                                 \
	X(rich, RICH, 576, 192, 2, 1, 1, 16, 2, 1)

#define FA_SM80_FORWARD(X)                                                                         \
	X(full, FULL, 64, 64, 4, 2, 1, 128, 2, 2)                                                  \
	X(band, BAND, 64, 64, 4, 2, 1, 128, 2, 2)                                                  \
	X(rich, RICH, 64, 64, 4, 2, 1, 64, 2, 2)                                                   \
	X(full, FULL, 96, 96, 4, 2, 1, 64, 2, 2)                                                   \
	X(band, BAND, 96, 96, 4, 2, 1, 64, 2, 2)                                                   \
	X(rich, RICH, 96, 96, 4, 2, 1, 32, 2, 2)                                                   \
	X(full, FULL, 128, 128, 4, 2, 1, 64, 2, 2)                                                 \
	X(band, BAND, 128, 128, 4, 2, 1, 64, 2, 2)                                                 \
	X(rich, RICH, 128, 128, 4, 2, 1, 32, 2, 2)                                                 \
	X(full, FULL, 192, 128, 4, 2, 1, 32, 2, 2)                                                 \
	X(band, BAND, 192, 128, 4, 2, 1, 32, 2, 2)                                                 \
	X(full, FULL, 192, 192, 8, 2, 2, 64, 2, 1)                                                 \
	X(band, BAND, 192, 192, 8, 2, 2, 64, 2, 1)                                                 \
	X(rich, RICH, 192, 192, 4, 1, 1, 32, 2, 2)                                                 \
	X(full, FULL, 256, 256, 8, 2, 2, 64, 2, 1)                                                 \
	X(band, BAND, 256, 256, 8, 2, 2, 64, 2, 1)                                                 \
	X(rich, RICH, 256, 256, 4, 1, 1, 32, 2, 2)                                                 \
	FA_SM80_FORWARD_WIDE(X)

/* With masks: as RICH, of which rows are as for FA_SM80_FORWARD (masked.h). */
#define FA_SM80_MASKED(X)                                                                          \
	X(masked, MASKED, 64, 64, 4, 2, 1, 64, 2, 2)                                               \
	X(masked, MASKED, 128, 128, 4, 2, 1, 32, 2, 2)                                             \
	X(masked, MASKED, 256, 256, 4, 1, 1, 32, 2, 2)

/* Q, STAGES tiles of K and V and, for pairs of warps (split 2), P and a float per row. */
#define FA_SM80_SHARED_BYTES(dim, dim_v, warps, atoms, split, keys, stages)                        \
	(2 * ((warps) / (split) * (atoms)*16 * (dim) + (stages) * (keys) * ((dim) + (dim_v))) +    \
	 ((split) > 1 ? (warps) * (atoms)*16 * ((keys) / (split)*2 + 4) : 0))

/* For fp32: X(dim, dim_v, rows, keys), rows and keys per thread (forward_f32.h). All are RICH. */
#define FA_SM80_FORWARD_F32_WIDE(X) X(576, 256, 1, 2)

#define FA_SM80_FORWARD_F32(X)                                                                     \
	X(64, 64, 4, 4)                                                                            \
	X(128, 128, 4, 4)                                                                          \
	X(256, 256, 2, 3)                                                                          \
	FA_SM80_FORWARD_F32_WIDE(X)

#define FA_SM80_F32_THREADS 128

#define FA_SM80_F32_PAD 4

#define FA_SM80_F32_SHARED_BYTES(dim, dim_v, rows, keys)                                           \
	(4 * ((16 * (rows) + 8 * (keys)) * ((dim) + FA_SM80_F32_PAD) + 8 * (keys) * (dim_v) +      \
	      8 * (keys) * (16 * (rows) + FA_SM80_F32_PAD)))
