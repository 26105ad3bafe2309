/*
 * Tensor cores (wgmma) and the copy engine see shared memory through the asynchronous
 * proxy, loads and stores through the generic one.
 */
#pragma once

/* This thread's stores so far come before what the asynchronous proxy does after a
 * barrier that follows. */
__device__ __forceinline__ void fa_proxy_fence_shared(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
