/*
 * The table of built sm_90a kernels for many query rows over pages, as kernels.h: read by the
 * device code, which instantiates a kernel from every row, and by paged-table.c.
 *
 * X(name, KIND, dim, dim_v, groups, keys, stages, q_slots, TURNS, seqlen_k_max); config.h says
 * what the numbers mean. None is FULL: tokens that are dropped are hidden from all rows.
 * seqlen_k_max: the longest sequence of a step for which the row is preferred to those that
 * follow.
 *
 * On an H200, bf16, causal, 32 query and 8 KV heads, TFLOP/s and the share of what the dense
 * kernel does: d128 one sequence of 8,192 with pages of 256 tokens 713 (0.93), of 64 708
 * (0.93), of 16 606 (0.79: boxes are small); eight of 1,024 451 (0.90, pages of 64). d64 483
 * (0.99), eight of 1,024 261 (0.77), before there was one for short ones. d256 with 16 and 4
 * heads 777 (1.00).
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
