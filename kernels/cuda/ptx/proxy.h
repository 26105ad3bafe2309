/*
 * Proxies: wgmma and the copy engine access shared memory through the async proxy, loads and stores
 * through the generic one.
 */
#pragma once

/* Orders this thread's earlier stores before accesses of the async proxy after the next barrier. */
__device__ __forceinline__ void fa_proxy_fence_shared(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
