/*
 * Instantiates every row of FA_SM90_PREFILL for FA_TYPE, named FA_TYPE_NAME.
 */
#include "kernels/cuda/sm90/forward.h"
#include "kernels/cuda/sm90/packed_source.h"
#include "kernels/cuda/sm90/paged_source.h"
#include "kernels/cuda/sm90/prefill_kernels.h"

#define FA_SOURCE_BAND fa_sm90_pages
#define FA_SOURCE_RICH fa_sm90_pages
#define FA_SOURCE_PACKED fa_sm90_packed

#define FA_ROW(type, name, KIND, dim, dim_v, groups, keys, stages, q_slots, pingpong,              \
               seqlen_k_max)                                                                       \
	extern "C" __global__ void __launch_bounds__(((groups) + 1) * 128, 1)                      \
		fa_sm90_paged_prefill_##type##_d##dim##_v##dim_v##_##name(                         \
			const __grid_constant__ struct fa_cuda_paged_attention args,               \
			const __grid_constant__ struct fa_cuda_maps maps)                          \
	{                                                                                          \
		fa_sm90_forward<                                                                   \
			fa_sm90_config<FA_TYPE, fa_sm90_##KIND, dim, dim_v, groups, keys, stages,  \
		                       q_slots, FA_SM90_PINGPONG_##pingpong, FA_SOURCE_##KIND>>(   \
			args, maps);                                                               \
	}
#define FA_ROW_EXPANDED(type, ...) FA_ROW(type, __VA_ARGS__)
#define FA_ROW_OF_TYPE(...) FA_ROW_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)

FA_SM90_PREFILL(FA_ROW_OF_TYPE)
