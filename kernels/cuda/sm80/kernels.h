/*
 * The table of built sm_80 kernels: plain C preprocessor, read
 * by the *_rows.h, which instantiate a kernel from every row, and by table.c, which
 * makes of every row one of what the host looks up.
 *
 * For 16-bit operands: X(kind, KIND, dim, dim_v, warps, atoms, keys, stages, blocks);
 * config.h says what the numbers mean.
 *
 * Kinds: FULL computes every (row, key) pair, BAND a window of any shape (causal is
 * one), both with a positive scale and rows on 16 bytes; RICH everything. RICH fits
 * 99 KiB of shared memory at every width, so that it is also what chips with less
 * than the 164 KiB of sm_80 use.
 */
#pragma once

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
	X(rich, RICH, 256, 256, 4, 1, 1, 32, 2, 2)

/* Q, STAGES tiles of K and V, and for pairs of warps (split 2) P and a float a row. */
#define FA_SM80_SHARED_BYTES(dim, dim_v, warps, atoms, split, keys, stages)                        \
	(2 * ((warps) / (split) * (atoms)*16 * (dim) + (stages) * (keys) * ((dim) + (dim_v))) +    \
	 ((split) > 1 ? (warps) * (atoms)*16 * ((keys) / (split)*2 + 4) : 0))

/*
 * For fp32: X(dim, dim_v, rows, keys), rows and keys of a thread (forward_f32.h). All
 * are RICH.
 */
#define FA_SM80_FORWARD_F32(X)                                                                     \
	X(64, 64, 4, 4)                                                                            \
	X(128, 128, 4, 4)                                                                          \
	X(256, 256, 2, 3)

#define FA_SM80_F32_THREADS 128 /* 16 groups of 8 lanes */

/* Padding of Q's and K's rows and of P's, in elements. */
#define FA_SM80_F32_PAD 4

/* Q, K, V and P. */
#define FA_SM80_F32_SHARED_BYTES(dim, dim_v, rows, keys)                                           \
	(4 * ((16 * (rows) + 8 * (keys)) * ((dim) + FA_SM80_F32_PAD) + 8 * (keys) * (dim_v) +      \
	      8 * (keys) * (16 * (rows) + FA_SM80_F32_PAD)))
