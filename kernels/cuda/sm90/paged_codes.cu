/*
 * Instantiates every row of FA_SM90_CODES_DECODE for both kinds of codes, in the forms of
 * paged_decode_rows.h.
 */
#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/sm90/paged_codes.h"

#define FA_CODES_KERNEL(name, levels, store, STORE, dim, atoms, groups, stages)                    \
	extern "C" __global__ void __launch_bounds__(FA_SM90_CODES_THREADS(groups), 1)             \
		fa_sm90_codes_##name##_##store##_d##dim##_a##atoms(                                \
			const __grid_constant__ struct fa_cuda_paged_attention_quantised args)         \
	{                                                                                          \
		fa_gate_pass(args.attention.attention.done);                                       \
		fa_sm90_codes_decode<                                                              \
			fa_sm90_codes_config<STORE, dim, atoms, groups, stages, false, levels>>(   \
			args.attention);                                                           \
	}
#define FA_CODES_SMALL(name, levels, store, STORE, dim, atoms, groups, stages)                     \
	extern "C" __global__ void __launch_bounds__(FA_SM90_CODES_THREADS(groups), 1)             \
		fa_sm90_codes_##name##_##store##_d##dim##_a##atoms##_small(                        \
			const __grid_constant__ struct fa_cuda_paged_small_attention_quantised args)   \
	{                                                                                          \
		fa_gate_pass(args.plain.attention.attention.done);                                 \
		fa_sm90_codes_decode<                                                              \
			fa_sm90_codes_config<STORE, dim, atoms, groups, stages, true, levels>>(    \
			args.plain.attention);                                                     \
	}
#define FA_CODES_ROW(...)                                                                          \
	FA_CODES_KERNEL(decode, false, __VA_ARGS__)                                                \
	FA_CODES_SMALL(decode, false, __VA_ARGS__)                                                 \
	FA_CODES_KERNEL(levels, true, __VA_ARGS__)                                                 \
	FA_CODES_SMALL(levels, true, __VA_ARGS__)
#define FA_CODES_E4M3_ROW(...) FA_CODES_ROW(e4m3, FA_STORE_E4M3, __VA_ARGS__)
#define FA_CODES_INT8_ROW(...) FA_CODES_ROW(int8, FA_STORE_INT8, __VA_ARGS__)

FA_SM90_CODES_DECODE(FA_CODES_E4M3_ROW)
FA_SM90_CODES_DECODE(FA_CODES_INT8_ROW)
