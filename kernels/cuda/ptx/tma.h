/*
 * TMA: copies boxes of a 4-dimensional tensor, described by a map (kernels/cuda/common/maps.h), to
 * shared memory. One thread issues. Coordinates: the box's first element, innermost first. Elements
 * outside of the tensor are zero.
 */
#pragma once

#include <stdint.h>

/* L2 eviction policies, for data that many blocks read and for data that is read once. */
__device__ __forceinline__ uint64_t fa_tma_policy_keep(void)
{
	uint64_t policy;

	asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
	return policy;
}

__device__ __forceinline__ uint64_t fa_tma_policy_once(void)
{
	uint64_t policy;

	asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
	return policy;
}

__device__ __forceinline__ void fa_tma_prefetch_map(const void *map)
{
	asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Starts a load whose bytes @barrier counts. */
__device__ __forceinline__ void fa_tma_load(uint32_t shared, const void *map, uint32_t barrier,
                                            int32_t x, int32_t y, int32_t z, int32_t w,
                                            uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
	             ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
	             "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
	             : "memory");
}

__device__ __forceinline__ void fa_tma_prefetch(const void *map, int32_t x, int32_t y, int32_t z,
                                                int32_t w, uint64_t policy)
{
	asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.L2::cache_hint"
	             " [%0, {%1, %2, %3, %4}], %5;" ::"l"(map),
	             "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
	             : "memory");
}
