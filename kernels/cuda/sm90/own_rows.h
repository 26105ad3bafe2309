/* Instantiates every row of FA_SM90_OWN_DECODE over a client's own pages, for FA_TYPE. */
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/common/own_plan.h"
#include "kernels/cuda/sm90/paged_decode.h"

template <class T, int DIM, int ATOMS, int GROUPS, int STAGES>
struct fa_sm90_own_config
    : fa_sm90_paged_config<T, DIM, ATOMS, GROUPS, STAGES, 1, false, false, false> {
	using BASE = fa_sm90_paged_config<T, DIM, ATOMS, GROUPS, STAGES, 1, false, false, false>;
	static constexpr int OWN = FA_SM90_OWN_PLANS(DIM) ? FA_OWN_PLANS : FA_OWN_PLANNED;
	static constexpr bool APPENDS = false, EARLY_LOADS = false;
	static constexpr int INIT_COMPUTE_THREADS = BASE::JOINED + 32;
};

#define FA_OWN_KERNEL(type, dim, atoms, groups, stages, blocks)                                    \
	extern "C" __global__ void __launch_bounds__(FA_SM90_PAGED_THREADS(dim, atoms, groups),    \
	                                             blocks)                                       \
		fa_sm90_own_decode_##type##_d##dim##_a##atoms(                                     \
			const __grid_constant__ struct fa_cuda_paged_attention_own args,           \
			const __grid_constant__ struct fa_cuda_maps maps)                          \
	{                                                                                          \
		const struct fa_cuda_paged_attention &p = args.attention.attention;                \
                                                                                                   \
		if (threadIdx.x < 2 && args.own.in_boxes)                                          \
			fa_tma_prefetch_map(&maps.maps[FA_CUDA_MAP_K + threadIdx.x]);              \
		fa_gate_pass(p.attention.done);                                                    \
		fa_await_launch_ahead();                                                           \
		using C = fa_sm90_own_config<FA_TYPE, dim, atoms, groups, stages>;                 \
                                                                                                   \
		fa_own_prefetch_table(p);                                                          \
		if (C::OWN == FA_OWN_PLANS && !args.own.ranges)                                    \
			fa_own_plan_in_shared(p);                                                  \
		if (fa_own_has_tiles<C::OWN>(p))                                                   \
			fa_sm90_paged_decode<C>(p, &maps);                                         \
		else                                                                               \
			fa_done(p.attention.done);                                                 \
	}
#define FA_OWN_KERNEL_EXPANDED(type, ...) FA_OWN_KERNEL(type, __VA_ARGS__)
#define FA_OWN_KERNEL_OF_TYPE(...) FA_OWN_KERNEL_EXPANDED(FA_TYPE_NAME, __VA_ARGS__)

FA_SM90_OWN_DECODE(FA_OWN_KERNEL_OF_TYPE)
