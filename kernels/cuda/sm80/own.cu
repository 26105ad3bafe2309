/* Kernels over a client's own pages that begin a request or append, and those for fp32 and e4m3. */
#define FA_TYPE float
#define FA_TYPE_NAME f32
#include "kernels/cuda/sm80/own_begin.h"
#include "kernels/cuda/sm80/own_decode_rows.h"
#include "kernels/cuda/sm80/paged_decode_quantised.h"

FA_SM80_OWN_DECODE_F32(FA_OWN_DECODE_OF_TYPE)

template <int DIM, int DIM_V, int ATOMS, int WARPS, int STAGES>
struct fa_own_e4m3_config : fa_quantised_config<FA_STORE_E4M3, DIM, DIM_V, ATOMS, WARPS, STAGES> {
	static constexpr int OWN = FA_OWN_PLANNED;
};

#define FA_OWN_E4M3(dim, dim_v, atoms, warps, stages)                                              \
	extern "C" __global__ void __launch_bounds__((warps)*32, 1)                                \
		fa_sm80_own_decode_e4m3_d##dim##_a##atoms(                                         \
			const __grid_constant__ struct fa_cuda_paged_attention_own args)           \
	{                                                                                          \
		const struct fa_cuda_paged_attention &p = args.attention.attention;                \
                                                                                                   \
		fa_gate_pass(p.attention.done);                                                    \
		if (fa_own_has_tiles<FA_OWN_PLANNED>(p))                                                           \
			fa_quantised_decode<                                                       \
				fa_own_e4m3_config<dim, dim_v, atoms, warps, stages>>(p);          \
		fa_done(p.attention.done);                                                         \
	}

FA_SM80_OWN_DECODE_E4M3(FA_OWN_E4M3)

extern "C" __global__ void __launch_bounds__(FA_CUDA_TOKENS_THREADS)
	fa_sm80_own_plan(const __grid_constant__ struct fa_cuda_own_plan args)
{
	fa_gate_pass(args.done);
	fa_own_begin(args);
	fa_done(args.done);
}

extern "C" __global__ void __launch_bounds__(FA_CUDA_TOKENS_THREADS)
	fa_sm80_own_append(const __grid_constant__ struct fa_cuda_own_append args)
{
	fa_gate_pass(args.done);
	fa_own_append(args);
	fa_done(args.done);
}
