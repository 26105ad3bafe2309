/* Instantiates rows of decode over a client's own pages for FA_TYPE. */
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/sm80/own_kernels.h"
#include "kernels/cuda/sm80/paged_decode.h"

template <class T, int DIM, int DIM_V, int ATOMS, int WARPS, int STAGES>
struct fa_own_config : fa_paged_config<T, DIM, DIM_V, ATOMS, WARPS, STAGES> {
	static constexpr int OWN = FA_OWN_PLANNED;
};

#define FA_OWN_KERNEL(type, dim, dim_v, atoms, warps, stages)                                      \
	extern "C" __global__ void __launch_bounds__((warps)*32, 1)                                \
		fa_sm80_own_decode_##type##_d##dim##_v##dim_v##_a##atoms(                          \
			const __grid_constant__ struct fa_cuda_paged_attention_own args)           \
	{                                                                                          \
		const struct fa_cuda_paged_attention &p = args.attention.attention;                \
                                                                                                   \
		fa_gate_pass(p.attention.done);                                                    \
		if (fa_own_has_tiles<FA_OWN_PLANNED>(p))                                           \
			fa_paged_decode<fa_own_config<FA_TYPE, dim, dim_v, atoms, warps, stages>>( \
				p);                                                                \
		fa_done(p.attention.done);                                                         \
	}
#define FA_OWN_KERNEL_EXPANDED(type, ...) FA_OWN_KERNEL(type, __VA_ARGS__)
#define FA_OWN_DECODE_OF_TYPE(...) FA_OWN_KERNEL_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)
