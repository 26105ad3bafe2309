/*
 * Bulk copies: contiguous bytes from global to shared memory by the copy engine, which a
 * barrier counts (mbarrier.h). Addresses and sizes are multiples of 16.
 */
#pragma once

#include <stdint.h>

/* For fa_bulk_load(): keeps in L2 what others will read soon, as usual. */
__device__ __forceinline__ uint64_t fa_bulk_policy_normal(void)
{
	uint64_t policy;

	asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
	return policy;
}

/* What nobody else will read leaves L2 first. */
__device__ __forceinline__ uint64_t fa_bulk_policy_once(void)
{
	uint64_t policy;

	asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
	return policy;
}

__device__ __forceinline__ void fa_bulk_load(uint32_t shared, const void *global, uint32_t bytes,
                                             uint32_t barrier, uint64_t policy)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
	             ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared),
	             "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
	             : "memory");
}
