/* Instantiates every row of FA_SM90_OWN_PREFILL for FA_TYPE, named FA_TYPE_NAME. */
#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/sm90/forward.h"
#include "kernels/cuda/sm90/own_packed.h"
#include "kernels/cuda/sm90/paged_source.h"
#include "kernels/cuda/sm90/prefill_kernels.h"

#define FA_OWN_SOURCE_BAND fa_sm90_own_pages
#define FA_OWN_SOURCE_RICH fa_sm90_own_pages
#define FA_OWN_SOURCE_PACKED fa_sm90_own_packed

#define FA_ROW(type, name, KIND, dim, dim_v, groups, keys, stages, q_slots, pingpong,              \
               seqlen_k_max)                                                                       \
	extern "C" __global__ void __launch_bounds__(((groups) + 1) * 128, 1)                      \
		fa_sm90_own_prefill_##type##_d##dim##_v##dim_v##_##name(                           \
			const __grid_constant__ struct fa_cuda_paged_attention_own args,           \
			const __grid_constant__ struct fa_cuda_maps maps)                          \
	{                                                                                          \
		fa_gate_pass(args.attention.attention.attention.done);                             \
		fa_sm90_forward<fa_sm90_config<FA_TYPE, fa_sm90_##KIND, dim, dim_v, groups, keys,  \
		                               stages, q_slots, FA_SM90_PINGPONG_##pingpong,       \
		                               FA_OWN_SOURCE_##KIND>>(args.attention.attention,    \
		                                                      maps);                       \
	}
#define FA_ROW_EXPANDED(type, ...) FA_ROW(type, __VA_ARGS__)
#define FA_ROW_OF_TYPE(...) FA_ROW_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)

FA_SM90_OWN_PREFILL(FA_ROW_OF_TYPE)
