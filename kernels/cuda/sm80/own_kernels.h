/*
 * The table of kernels over a client's own pages, like paged_kernels.h. They run everywhere: rings
 * are for 99 KiB of shared memory per block (fp32 of head dims above 256: 163).
 */
#pragma once

#include "kernels/cuda/sm80/paged_kernels.h"

#define FA_SM80_OWN_DECODE(X)                                                                      \
	X(64, 64, 1, 4, 4)                                                                         \
	X(64, 64, 2, 4, 4)                                                                         \
	X(128, 128, 1, 4, 2)                                                                       \
	X(128, 128, 2, 4, 2)                                                                       \
	X(256, 256, 1, 2, 2)                                                                       \
	X(576, 256, 1, 1, 2)

#define FA_SM80_OWN_DECODE_F32(X)                                                                  \
	X(64, 64, 1, 4, 2)                                                                         \
	X(128, 128, 1, 2, 2)                                                                       \
	X(256, 128, 1, 1, 3)                                                                       \
	X(576, 128, 1, 1, 2)

#define FA_SM80_OWN_DECODE_E4M3(X)                                                                 \
	X(64, 64, 1, 4, 6)                                                                         \
	X(128, 128, 1, 4, 3)                                                                       \
	X(256, 256, 1, 2, 4)                                                                       \
	X(640, 256, 1, 1, 4)

#define FA_SM80_OWN_FORWARD(X)                                                                     \
	X(64, 64, 4, 2, 1, 64, 2, 2)                                                               \
	X(128, 128, 4, 2, 1, 32, 2, 2)                                                             \
	X(256, 256, 4, 1, 1, 32, 2, 2)                                                             \
	X(576, 192, 2, 1, 1, 16, 2, 1)

/* fa_own_sums of each warp. */
#define FA_SM80_OWN_PLAN_SHARED_BYTES 256
