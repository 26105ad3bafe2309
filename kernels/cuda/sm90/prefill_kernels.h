/*
 * The table of built sm_90a kernels for many query rows over pages, as kernels.h: read by the
 * device code, which instantiates a kernel from every row, and by paged-table.c.
 *
 * X(name, KIND, dim, dim_v, groups, keys, stages, q_slots, TURNS, seqlen_k_max); config.h says
 * what the numbers mean. None is FULL: tokens that are dropped are hidden from all rows.
 * seqlen_k_max: the longest sequence of a step for which the row is preferred to those that
 * follow.
 *
 * What they have of the dense kernels' rate: bench/results/RESULTS.md, paged-prefill (an H200, bf16,
 * causal, d128: 0.98 with pages of 64 tokens, 0.97 with those of 16, whose boxes are small, and of
 * 256; eight sequences of 1,024 0.95, 0.92 and 0.93).
 */
#pragma once

#include "kernels/cuda/sm90/kernels.h"

#define FA_SM90_PREFILL(X)                                                                         \
	X(band_short, BAND, 64, 64, 4, 64, 8, 8, APART, 3072)                                      \
	X(band, BAND, 64, 64, 3, 128, 2, 6, EXPONENTIALS, INT32_MAX)                               \
	X(rich, RICH, 64, 64, 3, 64, 4, 6, PRODUCTS, INT32_MAX)                                    \
	X(band, BAND, 96, 96, 2, 128, 2, 4, PRODUCTS, INT32_MAX)                                   \
	X(band, BAND, 128, 128, 2, 128, 2, 4, PRODUCTS, INT32_MAX)                                 \
	X(rich, RICH, 128, 128, 2, 128, 2, 4, PRODUCTS, INT32_MAX)                                 \
	X(band, BAND, 192, 128, 2, 128, 2, 2, PRODUCTS, INT32_MAX)                                 \
	X(band, BAND, 192, 192, 2, 64, 2, 4, PRODUCTS, INT32_MAX)                                  \
	X(band, BAND, 256, 256, 2, 64, 2, 3, PRODUCTS, INT32_MAX)                                  \
	X(rich, RICH, 256, 256, 2, 64, 2, 3, PRODUCTS, INT32_MAX)
