/* Instantiates every row of FA_SM80_OWN_DECODE and FA_SM80_OWN_FORWARD for FA_TYPE. */
#include "kernels/cuda/sm80/own_decode_rows.h"
#include "kernels/cuda/sm80/own_forward.h"

#define FA_OWN_FORWARD(type, dim, dim_v, warps, atoms, split, keys, stages, blocks)                \
	extern "C" __global__ void __launch_bounds__((warps)*32, blocks)                           \
		fa_sm80_own_forward_##type##_d##dim##_v##dim_v(                                    \
			const __grid_constant__ struct fa_cuda_paged_attention_own args)           \
	{                                                                                          \
		const struct fa_cuda_paged_attention &p = args.attention.attention;                \
                                                                                                   \
		fa_gate_pass(p.attention.done);                                                    \
		if (fa_sm80_own_has_rows(p))                                                       \
			fa_sm80_forward<                                                           \
				fa_sm80_config<FA_TYPE, fa_sm80_rich, dim, dim_v, warps, atoms,    \
			                       split, keys, stages, blocks, fa_sm80_own>>(p);      \
		fa_done(p.attention.done);                                                         \
	}
#define FA_OWN_FORWARD_EXPANDED(type, ...) FA_OWN_FORWARD(type, __VA_ARGS__)
#define FA_OWN_FORWARD_OF_TYPE(...) FA_OWN_FORWARD_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)

FA_SM80_OWN_DECODE(FA_OWN_DECODE_OF_TYPE)
FA_SM80_OWN_FORWARD(FA_OWN_FORWARD_OF_TYPE)
