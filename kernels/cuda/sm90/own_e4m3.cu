/* Instantiates every row of FA_SM90_CODES_DECODE over a client's own pages of e4m3. */
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/sm90/paged_codes.h"

template <int DIM, int ATOMS, int GROUPS, int STAGES>
struct fa_sm90_own_e4m3_config
    : fa_sm90_codes_config<FA_STORE_E4M3, DIM, ATOMS, GROUPS, STAGES, false, false> {
	static constexpr int OWN = FA_OWN_PLANNED;
};

#define FA_OWN_KERNEL(dim, atoms, groups, stages)                                                  \
	extern "C" __global__ void __launch_bounds__(FA_SM90_CODES_THREADS(groups), 1)             \
		fa_sm90_own_decode_e4m3_d##dim##_a##atoms(                                         \
			const __grid_constant__ struct fa_cuda_paged_attention_own args,           \
			const __grid_constant__ struct fa_cuda_maps maps)                          \
	{                                                                                          \
		const struct fa_cuda_paged_attention &p = args.attention.attention;                \
                                                                                                   \
		fa_gate_pass(p.attention.done);                                                    \
		fa_await_launch_ahead();                                                           \
		if (fa_own_has_tiles<FA_OWN_PLANNED>(p))                                                           \
			fa_sm90_codes_decode<                                                      \
				fa_sm90_own_e4m3_config<dim, atoms, groups, stages>>(p, &maps);           \
		else                                                                               \
			fa_done(p.attention.done);                                                 \
	}

FA_SM90_CODES_DECODE(FA_OWN_KERNEL)
