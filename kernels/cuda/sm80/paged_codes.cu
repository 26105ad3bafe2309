#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/sm80/paged_decode_quantised.h"

#define FA_CODES_ROW(store, STORE, dim, dim_v, atoms, warps, stages)                               \
	extern "C" __global__ void __launch_bounds__((warps)*32, 1)                                \
		fa_sm80_codes_decode_##store##_d##dim##_a##atoms##_w##warps(                       \
			const __grid_constant__ struct fa_cuda_paged_attention_quantised args)     \
	{                                                                                          \
		fa_gate_pass(args.attention.attention.done);                                       \
		fa_quantised_decode<                                                               \
			fa_quantised_config<STORE, dim, dim_v, atoms, warps, stages>>(             \
			args.attention);                                                           \
		fa_done(args.attention.attention.done);                                            \
	}
#define FA_CODES_E4M3_ROW(...) FA_CODES_ROW(e4m3, FA_STORE_E4M3, __VA_ARGS__)
#define FA_CODES_INT8_ROW(...) FA_CODES_ROW(int8, FA_STORE_INT8, __VA_ARGS__)

FA_SM80_QUANTISED_DECODE(FA_CODES_E4M3_ROW)
FA_SM80_QUANTISED_DECODE(FA_CODES_INT8_ROW)
