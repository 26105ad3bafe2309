/*
 * Instantiates every row of FA_SM90_MASKED for FA_TYPE, named FA_TYPE_NAME.
 */
#include "kernels/cuda/sm90/forward.h"

#define FA_ROW(type, name, KIND, dim, dim_v, groups, keys, stages, q_slots, pingpong,              \
               seqlen_k_max)                                                                       \
	extern "C" __global__ void __launch_bounds__(((groups) + 1) * 128, 1)                      \
		fa_sm90_forward_##type##_d##dim##_v##dim_v##_##name(                               \
			const __grid_constant__ struct fa_cuda_masked_attention args,              \
			const __grid_constant__ struct fa_cuda_maps maps)                          \
	{                                                                                          \
		fa_sm90_forward<                                                                   \
			fa_sm90_config<FA_TYPE, fa_sm90_##KIND, dim, dim_v, groups, keys, stages,  \
		                       q_slots, FA_SM90_PINGPONG_##pingpong, fa_sm90_masked>>(     \
			args, maps);                                                               \
	}
#define FA_ROW_EXPANDED(type, ...) FA_ROW(type, __VA_ARGS__)
#define FA_ROW_OF_TYPE(...) FA_ROW_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)

FA_SM90_MASKED(FA_ROW_OF_TYPE)
