/*
 * Instantiates every row of FA_SM80_MASKED for FA_TYPE, named FA_TYPE_NAME.
 */
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/sm80/masked.h"

#define FA_MASKED_ROW(type, kind, KIND, dim, dim_v, warps, atoms, split, keys, stages, blocks)     \
	extern "C" __global__ void __launch_bounds__((warps)*32, blocks)                           \
		fa_sm80_forward_##type##_d##dim##_v##dim_v##_##kind(                               \
			const __grid_constant__ struct fa_cuda_masked_attention args)              \
	{                                                                                          \
		fa_masked_forward<                                                                 \
			fa_sm80_config<FA_TYPE, fa_sm80_##kind, dim, dim_v, warps, atoms, split,   \
		                       keys, stages, blocks, fa_sm80_masked_tensors>>(args);       \
		fa_done(args.attention.done);                                                      \
	}
#define FA_MASKED_ROW_EXPANDED(type, ...) FA_MASKED_ROW(type, __VA_ARGS__)
#define FA_MASKED_ROW_OF_TYPE(...) FA_MASKED_ROW_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)

FA_SM80_MASKED(FA_MASKED_ROW_OF_TYPE)
