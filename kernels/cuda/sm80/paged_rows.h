/*
 * Instantiates every row of FA_SM80_PAGED_FORWARD, FA_SM80_PAGED_DECODE and FA_SM80_PAGED_SPLIT for
 * FA_TYPE.
 */
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/sm80/paged_decode_rows.h"
#include "kernels/cuda/sm80/paged_forward.h"

#define FA_FORWARD_ROW(type, kind, KIND, dim, dim_v, warps, atoms, split, keys, stages, blocks)    \
	extern "C" __global__ void __launch_bounds__((warps)*32, blocks)                           \
		fa_sm80_paged_forward_##type##_d##dim##_v##dim_v##_##kind(                         \
			const __grid_constant__ struct fa_cuda_paged_attention args)               \
	{                                                                                          \
		fa_sm80_forward<fa_sm80_config<FA_TYPE, fa_sm80_##kind, dim, dim_v, warps, atoms,  \
		                               split, keys, stages, blocks, fa_sm80_pages>>(args); \
		fa_done(args.attention.done);                                                      \
	}
#define FA_FORWARD_ROW_EXPANDED(type, ...) FA_FORWARD_ROW(type, __VA_ARGS__)
#define FA_FORWARD_ROW_OF_TYPE(...) FA_FORWARD_ROW_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)

FA_SM80_PAGED_FORWARD(FA_FORWARD_ROW_OF_TYPE)
FA_SM80_PAGED_DECODE(FA_PAGED_ROW_OF_TYPE)
FA_SM80_PAGED_SPLIT(FA_PAGED_SPLIT_OF_TYPE)
