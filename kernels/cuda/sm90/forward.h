/*
 * Entry of the forward kernels on wgmma, fp16 and bf16. Warpgroup 0 is the producer (load.h), the
 * other GROUPS are consumers of 64 query rows each (consumer.h). While O of a block of rows is
 * stored, Q, K and V of the next arrive.
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/memory.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/ptx/warpgroup.h"
#include "kernels/cuda/sm90/alibi.h"
#include "kernels/cuda/sm90/config.h"
#include "kernels/cuda/sm90/consumer.h"
#include "kernels/cuda/sm90/dense_source.h"
#include "kernels/cuda/sm90/load.h"
#include "kernels/cuda/sm90/masked_load.h"
#include "kernels/cuda/sm90/yield.h"

#include <stdint.h>

template <class C>
__device__ __forceinline__ void fa_sm90_forward(const typename C::ARGS &args,
                                                const struct fa_cuda_maps &maps)
{
	extern __shared__ __align__(1024) char shared_memory[];
	const uint32_t shared = fa_shared_address(shared_memory);
	/* The shuffle tells the compiler that this is uniform. */
	const uint32_t warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);

	/* No cache has the tensor maps yet. */
	if (threadIdx.x == 128) {
#pragma unroll
		for (int i = 0; i < FA_CUDA_MAPS; i++)
			fa_tma_prefetch_map(&maps.maps[i]);
	}
	if (threadIdx.x == 0) {
		for (int i = 0; i < C::Q_SLOTS; i++) {
			fa_mbarrier_init(shared + C::Q_FULL + 8 * i, 1);
			fa_mbarrier_init(shared + C::Q_EMPTY + 8 * i, 4);
		}
		for (int i = 0; i < C::STAGES; i++) {
			fa_mbarrier_init(shared + C::K_FULL + 8 * i, 1);
			fa_mbarrier_init(shared + C::V_FULL + 8 * i, 1);
			fa_mbarrier_init(shared + C::K_EMPTY + 8 * i, C::GROUPS * 4);
			fa_mbarrier_init(shared + C::V_EMPTY + 8 * i, C::GROUPS * 4);
		}
		if constexpr (C::LISTED) {
			for (int i = 0; i < 2; i++) {
				fa_mbarrier_init(shared + C::LIST_FULL + 8 * i, 1);
				fa_mbarrier_init(shared + C::LIST_EMPTY + 8 * i, 1);
			}
			fa_st_shared(shared + C::LISTS_END, 0);
		}
		fa_mbarrier_init_fence();
		if (C::YIELDS)
			fa_sm90_yield_begin<C>(C::SOURCE::attention(args), shared);
	}
	if constexpr (C::ALIBI_MMA) {
		if (C::SOURCE::attention(args).alibi_slopes)
			fa_sm90_alibi_write_keys<C>(shared);
	}
	__syncthreads();
	if (C::YIELDS && fa_ld_shared(shared + C::EXITS))
		return;
	if constexpr (C::SOURCE::PLANS)
		C::SOURCE::template plan<C>(args);

	if (warpgroup == 0) {
		fa_setmaxnreg_dec<C::PRODUCER_REGISTERS>();
		if constexpr (C::LISTED) {
			if (threadIdx.x < 32)
				fa_sm90_load_listed<C>(args, maps, shared);
			else if (threadIdx.x < 64)
				fa_sm90_read_lists<C>(args, shared);
		} else if (threadIdx.x < (C::PAGED ? 32 * C::SOURCE::loaders(args) : 32)) {
			fa_sm90_load<C>(args, maps, shared);
		}
	} else {
		fa_setmaxnreg_inc<C::CONSUMER_REGISTERS>();
		fa_sm90_compute<C>(args, shared, warpgroup - 1);
		if (C::YIELDS)
			fa_sm90_yield_end<C>(C::SOURCE::attention(args), shared);
		else
			/* The producer may have exited. */
			fa_done_behind(C::SOURCE::attention(args).done, 128, C::GROUPS * 128);
	}
}
