/*
 * The table of built sm_90a kernels: plain C preprocessor, read by forward_rows.h, which
 * instantiates a kernel from every row, and by table.c, which makes of every row one of
 * what the host looks up.
 *
 * X(name, KIND, dim, dim_v, groups, keys, stages, q_slots, TURNS, seqlen_k_max); config.h
 * says what the numbers mean. Kinds are those of sm80/kernels.h; WINDOW, a BAND that is best
 * where it is narrow; and CAP, what RICH does with a soft cap and no ALiBi. seqlen_k_max: the
 * longest sequence for which the row is preferred to those that follow.
 *
 * Tried and slower, on an H200, bf16, 16,384 tokens (TFLOP/s at boost, this against that):
 *   d128  176 keys 730, 160 keys and three stages of 128 with two slots of Q 739, no turns
 *         741, turns of exponentials 784, dot products in halves of 64 keys so that
 *         exponentials start sooner 766; against 801 (full, 16k)
 *         a diagonal tile of 64 keys for the upper group 697 against 717 (causal, 16k):
 *         more code in the loop costs all other tiles more
 *   d256  80 keys 831 against 843 (full, 16k)
 *   d64   two groups 493, a polynomial for every fourth exponential 565, turns of products
 *         580; against 596 (full, 16k). Four groups of 64 keys are better while sequences
 *         are short: 468 against 450 (full, 1k), 394 against 371 (causal, 2k), but not
 *         when they are long: 553 against 596 (full, 16k). With such tiles, groups that go
 *         their own ways leave out a quarter of a short causal block's, which is worth more
 *         than turns: 275 against 219 (causal, 512), 354 against 316 (1k), 415 against 402
 *         (2k); not so with more tiles, 451 against 488 of the long one (4k), or where
 *         nothing is left out, 389 against 418 (full, 512). Four stages 272 (causal, 512)
 * and everywhere: O through shared memory by TMA, blocks of threads that compute one block
 * of rows each, prefetches of the next block's K and V to L2.
 *
 * WINDOW: of 1,024 keys at 16k BAND computes 10 tiles for 192 rows at d64, 9 at d128 and 18 at
 * d256, where 8.5, 8.5 and 17 are seen by a group. At d64 groups leave out a tile of ten, which
 * takes places for more than two, as they are a tile apart then: 415 TFLOP/s against 393. Slower
 * were d128, 548 against 567 (it has only the fetches to L2 of its own), and d256 where a group
 * leaves out one tile of 18, 472 against 579. Halves of tiles at both ends would leave out as
 * much again, but ptxas serialises products of which there are less in some tiles (C7511, C7515).
 *
 * RICH, at 4k: with ALiBi by slope.h 0.879 of plain at d64 (full; causal 0.888; 0.829 and 0.842
 * in another order of instructions); with one FMA for a key 0.785 there, of 96 keys, which are 4.1
 * instructions for a pair of row and key, plain 3.2, and 0.92 at d128, 0.98 at d256. Short ones at
 * d64 were faster on sm80's then, 173 against 143 (causal, 512).
 *
 * CAP, causal at 4k: by softcap.h 0.646, 0.723 and 0.87 of plain on an H200; on an H100 0.67, 0.737
 * and 0.874, and fp16 0.625 and 0.745 at d64 and d128. What follows is of that. It is issue that
 * lacks, not the tensor cores: an instruction of the special unit takes 4 cycles of it (and 8 of
 * the unit), an FMA 1, or 1.5 if all it reads are vector registers (measured by themselves). So a
 * dot takes 12, a plain one 8; and where parts of dots end warps wait, for votes and for what the
 * special unit has not done yet. So d64 has two groups, which have the registers for parts of 32:
 * 0.605 with three of 96 keys by eights, 0.63 by 24s, 0.64 with two by sixteens, 0.66 with all 64
 * at once, 0.59 with three of 64 keys at once. d128 had 0.70 by sixteens. Where nothing looks for
 * large dots, which is wrong, 0.735 and 0.745; if besides there is one coefficient less 0.77 and
 * 0.785. In races before, of d64 with three groups: with tanh.approx 0.64 and 0.74, with one FMA
 * instead of all 0.97 and 0.98; by RICH 0.51, 0.62 and 0.81, and by three steps of the special unit
 * for a key, whatever it is, 0.47, 0.51 and 0.80.
 */
#pragma once

#define FA_SM90_FORWARD(X)                                                                         \
	X(full_short, FULL, 64, 64, 4, 64, 4, 8, PRODUCTS, 1536)                                   \
	X(band_short, BAND, 64, 64, 4, 64, 8, 8, APART, 3072)                                      \
	X(full, FULL, 64, 64, 3, 128, 2, 6, EXPONENTIALS, INT32_MAX)                               \
	X(band, BAND, 64, 64, 3, 128, 2, 6, EXPONENTIALS, INT32_MAX)                               \
	X(window, WINDOW, 64, 64, 3, 128, 4, 6, EXPONENTIALS, INT32_MAX)                           \
	X(cap, CAP, 64, 64, 2, 128, 2, 4, EXPONENTIALS, INT32_MAX)                                 \
	X(rich, RICH, 64, 64, 3, 128, 2, 6, EXPONENTIALS, INT32_MAX)                               \
	X(full, FULL, 96, 96, 2, 128, 2, 4, PRODUCTS, INT32_MAX)                                   \
	X(band, BAND, 96, 96, 2, 128, 2, 4, PRODUCTS, INT32_MAX)                                   \
	X(full, FULL, 128, 128, 2, 128, 2, 4, PRODUCTS, INT32_MAX)                                 \
	X(band, BAND, 128, 128, 2, 128, 2, 4, PRODUCTS, INT32_MAX)                                 \
	X(cap, CAP, 128, 128, 2, 128, 2, 4, PRODUCTS, INT32_MAX)                                   \
	X(rich, RICH, 128, 128, 2, 128, 2, 4, PRODUCTS, INT32_MAX)                                 \
	X(full, FULL, 192, 128, 2, 128, 2, 2, PRODUCTS, INT32_MAX)                                 \
	X(band, BAND, 192, 128, 2, 128, 2, 2, PRODUCTS, INT32_MAX)                                 \
	X(full, FULL, 192, 192, 2, 96, 2, 3, PRODUCTS, INT32_MAX)                                  \
	X(band, BAND, 192, 192, 2, 96, 2, 3, PRODUCTS, INT32_MAX)                                  \
	X(full, FULL, 256, 256, 2, 64, 2, 3, PRODUCTS, INT32_MAX)                                  \
	X(band, BAND, 256, 256, 2, 64, 2, 3, PRODUCTS, INT32_MAX)                                  \
	X(cap, CAP, 256, 256, 2, 64, 2, 3, PRODUCTS, INT32_MAX)                                    \
	X(rich, RICH, 256, 256, 2, 64, 2, 3, PRODUCTS, INT32_MAX)

/* Q, STAGES tiles of K and V, and the barriers. */
#define FA_SM90_SHARED_BYTES(dim, dim_v, keys, stages, q_slots)                                    \
	(2 * ((q_slots)*64 * FA_SM90_WIDTH(dim) +                                                  \
	      (stages) * (keys) * (FA_SM90_WIDTH(dim) + FA_SM90_WIDTH(dim_v))) +                   \
	 FA_SM90_BARRIER_BYTES)
/* Of tensors, what ALiBi by products has besides (slope.h), of each kind. */
#define FA_SM90_SLOPES_BYTES_FULL(dim, keys) 0
#define FA_SM90_SLOPES_BYTES_BAND(dim, keys) 0
#define FA_SM90_SLOPES_BYTES_WINDOW(dim, keys) 0
#define FA_SM90_SLOPES_BYTES_CAP(dim, keys) 0
#define FA_SM90_SLOPES_BYTES_RICH(dim, keys) ((dim) == 64 ? 128 * (64 + (keys)) : 0)
#define FA_SM90_WIDTH(dim) (((dim) + 63) / 64 * 64)
#define FA_SM90_BARRIER_BYTES 512

/* Whether a block of threads can stop early (config.h), and what it saves then (yield.h). */
#define FA_SM90_YIELDS_PRODUCTS 1
#define FA_SM90_YIELDS_EXPONENTIALS 1
#define FA_SM90_YIELDS_APART 0
#define FA_SM90_STATE_BYTES(dim_v, groups) ((groups)*128 * ((dim_v) / 8 + 1) * 16)

/* A warpgroup's rows. */
#define FA_SM90_GROUP_ROWS 64
