/* Every row of FA_SM80_PAGED_DECODE as a kernel for the type FA_TYPE, called FA_TYPE_NAME. */
#include "kernels/cuda/sm80/paged_decode.h"

#define FA_PAGED_ROW(type, dim, dim_v, atoms, warps, stages)                                       \
	extern "C" __global__ void __launch_bounds__((warps)*32, 1)                                \
		fa_sm80_paged_decode_##type##_d##dim##_v##dim_v##_a##atoms##_w##warps(             \
			const __grid_constant__ struct fa_cuda_paged_attention args)               \
	{                                                                                          \
		fa_paged_decode<fa_paged_config<FA_TYPE, dim, dim_v, atoms, warps, stages>>(args); \
	}
#define FA_PAGED_ROW_EXPANDED(type, ...) FA_PAGED_ROW(type, __VA_ARGS__)
#define FA_PAGED_ROW_OF_TYPE(...) FA_PAGED_ROW_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)
