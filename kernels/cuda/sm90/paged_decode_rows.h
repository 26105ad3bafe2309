/*
 * Instantiates every row of FA_SM90_PAGED_DECODE for FA_TYPE: plain, with the page table in the
 * launch (small), and both again with a two-level reduction (levels); and every row of
 * FA_SM90_PAGED_PIECES.
 */
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/sm90/paged_decode.h"

#define FA_PAGED_KERNEL(name, pieces, levels, type, dim, atoms, groups, stages, blocks)            \
	extern "C" __global__ void __launch_bounds__(FA_SM90_PAGED_THREADS(dim, atoms, groups),    \
	                                             blocks)                                       \
		fa_sm90_paged_##name##_##type##_d##dim##_a##atoms(                                 \
			const __grid_constant__ struct fa_cuda_paged_attention args)               \
	{                                                                                          \
		fa_gate_pass(args.attention.done);                                                 \
		fa_sm90_paged_decode<fa_sm90_paged_config<FA_TYPE, dim, atoms, groups, stages,     \
		                                          blocks, false, pieces, levels>>(args);   \
	}
#define FA_PAGED_SMALL(name, levels, type, dim, atoms, groups, stages, blocks)                     \
	extern "C" __global__ void __launch_bounds__(FA_SM90_PAGED_THREADS(dim, atoms, groups),    \
	                                             blocks)                                       \
		fa_sm90_paged_##name##_##type##_d##dim##_a##atoms##_small(                         \
			const __grid_constant__ struct fa_cuda_paged_small_attention args)         \
	{                                                                                          \
		fa_gate_pass(args.plain.attention.done);                                           \
		fa_sm90_paged_decode<fa_sm90_paged_config<FA_TYPE, dim, atoms, groups, stages,     \
		                                          blocks, true, false, levels>>(           \
			args.plain);                                                               \
	}
#define FA_PAGED_ROW(...)                                                                          \
	FA_PAGED_KERNEL(decode, false, false, __VA_ARGS__)                                         \
	FA_PAGED_SMALL(decode, false, __VA_ARGS__)                                                 \
	FA_PAGED_KERNEL(levels, false, true, __VA_ARGS__) FA_PAGED_SMALL(levels, true, __VA_ARGS__)
#define FA_PAGED_SPLIT_ROW(...) FA_PAGED_KERNEL(pieces, true, false, __VA_ARGS__)
#define FA_PAGED_ROW_OF(type, ...) FA_PAGED_ROW(type, __VA_ARGS__)
#define FA_PAGED_ROW_OF_TYPE(...) FA_PAGED_ROW_OF(FA_TYPE_NAME, __VA_ARGS__)
#define FA_PAGED_SPLIT_OF(type, ...) FA_PAGED_SPLIT_ROW(type, __VA_ARGS__)
#define FA_PAGED_SPLIT_OF_TYPE(...) FA_PAGED_SPLIT_OF(FA_TYPE_NAME, __VA_ARGS__)

FA_SM90_PAGED_DECODE(FA_PAGED_ROW_OF_TYPE)
FA_SM90_PAGED_PIECES(FA_PAGED_SPLIT_OF_TYPE)
