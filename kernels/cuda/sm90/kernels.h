/*
 * Table of the dense sm_90a kernels: forward_rows.h instantiates the rows, table.c lists them for
 * the host. X(name, KIND, dim, dim_v, groups, keys, stages, q_slots, PINGPONG, seqlen_k_max), see
 * config.h. KIND is one of sm80/kernels.h, PACKED, PACKED_RAGGED, or WINDOW (a BAND for narrow
 * windows) or CAP (RICH with a soft cap and without ALiBi). seqlen_k_max: the row is preferred to
 * later rows up to this length. docs/kernels.md says why these shapes.
 */
#pragma once

#define FA_SM90_FORWARD(X)                                                                         \
	X(full_short, FULL, 64, 64, 4, 64, 4, 8, GEMM, 1536)                                       \
	X(band_short, BAND, 64, 64, 4, 64, 8, 8, NONE, 3072)                                       \
	X(band_few, BAND, 64, 64, 2, 64, 8, 4, NONE, 3072)                                         \
	X(full, FULL, 64, 64, 3, 128, 2, 6, SOFTMAX, INT32_MAX)                                    \
	X(band, BAND, 64, 64, 3, 128, 2, 6, SOFTMAX, INT32_MAX)                                    \
	X(window, WINDOW, 64, 64, 3, 128, 4, 6, SOFTMAX, INT32_MAX)                                \
	X(cap, CAP, 64, 64, 2, 128, 2, 4, SOFTMAX, INT32_MAX)                                      \
	X(rich, RICH, 64, 64, 3, 128, 2, 6, SOFTMAX, INT32_MAX)                                    \
	X(full, FULL, 96, 96, 2, 128, 2, 4, GEMM, INT32_MAX)                                       \
	X(band, BAND, 96, 96, 2, 128, 2, 4, GEMM, INT32_MAX)                                       \
	X(full, FULL, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                                     \
	X(band, BAND, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                                     \
	X(cap, CAP, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                                       \
	X(rich, RICH, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                                     \
	X(full, FULL, 192, 128, 2, 128, 2, 2, GEMM, INT32_MAX)                                     \
	X(band, BAND, 192, 128, 2, 128, 2, 2, GEMM, INT32_MAX)                                     \
	X(full, FULL, 192, 192, 2, 96, 2, 3, GEMM, INT32_MAX)                                      \
	X(band, BAND, 192, 192, 2, 96, 2, 3, GEMM, INT32_MAX)                                      \
	X(full, FULL, 256, 256, 2, 64, 2, 3, GEMM, INT32_MAX)                                      \
	X(band, BAND, 256, 256, 2, 64, 2, 3, GEMM, INT32_MAX)                                      \
	X(cap, CAP, 256, 256, 2, 64, 2, 3, GEMM, INT32_MAX)                                        \
	X(rich, RICH, 256, 256, 2, 64, 2, 3, GEMM, INT32_MAX)                                      \
	FA_SM90_PACKED(X)                                                                          \
	FA_SM90_PACKED_RAGGED(X)

/* Packed rows (packed_source.h), over tensors and over pages. */
#define FA_SM90_PACKED(X)                                                                          \
	X(packed, PACKED, 64, 64, 2, 128, 3, 4, SOFTMAX, INT32_MAX)                                \
	X(packed, PACKED, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                                 \
	X(packed, PACKED, 192, 128, 2, 128, 2, 2, GEMM, INT32_MAX)                                 \
	X(packed, PACKED, 256, 256, 2, 64, 2, 3, GEMM, INT32_MAX)

/* The same for ragged tensors: units are listed, and a tile may end in keys of another sequence. */
#define FA_SM90_PACKED_RAGGED(X)                                                                   \
	X(packed_ragged, PACKED_RAGGED, 64, 64, 2, 128, 3, 4, SOFTMAX, INT32_MAX)                  \
	X(packed_ragged, PACKED_RAGGED, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                   \
	X(packed_ragged, PACKED_RAGGED, 192, 128, 2, 128, 2, 2, GEMM, INT32_MAX)                   \
	X(packed_ragged, PACKED_RAGGED, 256, 256, 2, 64, 2, 3, GEMM, INT32_MAX)

/* With masks (masked_source.h): blocks of 128 rows, tiles of two halves of 64 keys each. */
#define FA_SM90_MASKED(X)                                                                          \
	X(masked, MASKED, 64, 64, 2, 128, 4, 4, SOFTMAX, INT32_MAX)                                \
	X(masked, MASKED, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)

/* Keys of a half, and keys and granules of 16 keys of a sequence at most: of lists and bits, of
 * patterns. */
#define FA_SM90_HALF_KEYS 64
#define FA_SM90_MASKED_HALVES_MAX 8192
#define FA_SM90_MASKED_GRANULES_MAX 8192

/* Q, STAGES tiles of K and V, and the rest of config.h's SHARED. */
#define FA_SM90_SHARED_BYTES(dim, dim_v, keys, stages, q_slots)                                    \
	(2 * ((q_slots)*64 * FA_SM90_WIDTH(dim) +                                                  \
	      (stages) * (keys) * (FA_SM90_WIDTH(dim) + FA_SM90_WIDTH(dim_v))) +                   \
	 FA_SM90_BARRIER_BYTES)
/* Tiles of alibi.h and words of masked_source.h, by kind. */
#define FA_SM90_EXTRA_BYTES_FULL(dim, keys) 0
#define FA_SM90_EXTRA_BYTES_BAND(dim, keys) 0
#define FA_SM90_EXTRA_BYTES_PACKED(dim, keys) 0
#define FA_SM90_EXTRA_BYTES_PACKED_RAGGED(dim, keys) 0
#define FA_SM90_EXTRA_BYTES_WINDOW(dim, keys) 0
#define FA_SM90_EXTRA_BYTES_CAP(dim, keys) 0
#define FA_SM90_EXTRA_BYTES_MASKED(dim, keys) FA_SM90_LIST_BYTES
#define FA_SM90_EXTRA_BYTES_RICH(dim, keys) ((dim) == 64 ? 128 * (64 + (keys)) : 0)
/* Two blocks of rows' words, of two groups and a pattern; words of 8 warps. */
#define FA_SM90_LIST_BYTES (1024 * (2 * 3 + 8))
#define FA_SM90_WIDTH(dim) (((dim) + 63) / 64 * 64)
#define FA_SM90_BARRIER_BYTES 512

/* A thread block's yielding, and the bytes of state that it saves (yield.h). */
#define FA_SM90_YIELDS_GEMM 1
#define FA_SM90_YIELDS_SOFTMAX 1
#define FA_SM90_YIELDS_NONE 0
#define FA_SM90_STATE_BYTES(dim_v, groups) ((groups)*128 * ((dim_v) / 8 + 1) * 16)

/* Whether a BAND kernel over tensors or pages adds sinks; others would spill. */
#define FA_SM90_BAND_SINKS(dim, keys) ((dim) != 64 || (keys) < 128)
#define FA_SM90_PAGED_BAND_SINKS(dim) ((dim) < 256)

/* Whether prefill over a client's own pages can plan for itself; others would spill. */
#define FA_SM90_OWN_PREFILL_PLANS(dim, rich) ((dim) == 128 || (rich))

/* Per consumer warpgroup. */
#define FA_SM90_GROUP_ROWS 64
