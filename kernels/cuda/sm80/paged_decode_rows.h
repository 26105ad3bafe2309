/*
 * Instantiates every row of FA_SM80_PAGED_DECODE and FA_SM80_PAGED_SPLIT for FA_TYPE.
 */
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/sm80/paged_decode.h"

#define FA_PAGED_KERNEL(kind, pieces, type, dim, dim_v, atoms, warps, stages)                      \
	extern "C" __global__ void __launch_bounds__((warps)*32, 1)                                \
		fa_sm80_paged_##kind##_##type##_d##dim##_v##dim_v##_a##atoms##_w##warps(           \
			const __grid_constant__ struct fa_cuda_paged_attention args)               \
	{                                                                                          \
		fa_gate_pass(args.attention.done);                                                 \
		fa_paged_decode<                                                                   \
			fa_paged_config<FA_TYPE, dim, dim_v, atoms, warps, stages, pieces>>(args); \
		fa_done(args.attention.done);                                                      \
	}
#define FA_PAGED_KERNEL_EXPANDED(kind, pieces, type, ...)                                          \
	FA_PAGED_KERNEL(kind, pieces, type, __VA_ARGS__)
#define FA_PAGED_ROW_OF_TYPE(...) FA_PAGED_KERNEL_EXPANDED(decode, false, FA_TYPE_NAME, __VA_ARGS__)
#define FA_PAGED_SPLIT_OF_TYPE(...)                                                                \
	FA_PAGED_KERNEL_EXPANDED(pieces, true, FA_TYPE_NAME, __VA_ARGS__)
