/*
 * Table of the sm_90a kernels for many query rows over pages (prefill): X(name, KIND, dim, dim_v,
 * groups, keys, stages, q_slots, PINGPONG, seqlen_k_max), as in kernels.h. None is FULL: dropped
 * tokens are hidden from all rows.
 */
#pragma once

#include "kernels/cuda/sm90/kernels.h"

#define FA_SM90_PREFILL(X)                                                                         \
	X(band_short, BAND, 64, 64, 4, 64, 8, 8, NONE, 3072)                                       \
	X(band, BAND, 64, 64, 3, 128, 2, 6, SOFTMAX, INT32_MAX)                                    \
	X(rich, RICH, 64, 64, 3, 64, 4, 6, GEMM, INT32_MAX)                                        \
	X(band, BAND, 96, 96, 2, 128, 2, 4, GEMM, INT32_MAX)                                       \
	X(band, BAND, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                                     \
	X(rich, RICH, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                                     \
	X(band, BAND, 192, 128, 2, 128, 2, 2, GEMM, INT32_MAX)                                     \
	X(band, BAND, 192, 192, 2, 64, 2, 4, GEMM, INT32_MAX)                                      \
	X(band, BAND, 256, 256, 2, 64, 2, 3, GEMM, INT32_MAX)                                      \
	X(rich, RICH, 256, 256, 2, 64, 2, 3, GEMM, INT32_MAX)                                      \
	FA_SM90_PACKED(X)

/* The rows that are also built over a client's own pages; RICH at d256 spills there. */
#define FA_SM90_OWN_PREFILL(X)                                                                     \
	X(band, BAND, 64, 64, 3, 128, 2, 6, SOFTMAX, INT32_MAX)                                    \
	X(rich, RICH, 64, 64, 3, 64, 4, 6, GEMM, INT32_MAX)                                        \
	X(band, BAND, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                                     \
	X(rich, RICH, 128, 128, 2, 128, 2, 4, GEMM, INT32_MAX)                                     \
	X(band, BAND, 192, 128, 2, 128, 2, 2, GEMM, INT32_MAX)                                     \
	X(band, BAND, 256, 256, 2, 64, 2, 3, GEMM, INT32_MAX)                                      \
	FA_SM90_PACKED(X)
