/*
 * cp.async.bulk: contiguous copies from global to shared memory whose bytes an mbarrier counts.
 * Addresses and sizes are multiples of 16.
 */
#pragma once

#include <stdint.h>

/* L2 eviction policy for data that is read again soon. */
__device__ __forceinline__ uint64_t fa_bulk_policy_normal(void)
{
	uint64_t policy;

	asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
	return policy;
}

/* L2 eviction policy for data that is read once. */
__device__ __forceinline__ uint64_t fa_bulk_policy_once(void)
{
	uint64_t policy;

	asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
	return policy;
}

/* Into L2. */
__device__ __forceinline__ void fa_bulk_prefetch(const void *global, uint32_t bytes)
{
	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes)
	             : "memory");
}

__device__ __forceinline__ void fa_bulk_load(uint32_t shared, const void *global, uint32_t bytes,
                                             uint32_t barrier, uint64_t policy)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
	             ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared),
	             "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
	             : "memory");
}
