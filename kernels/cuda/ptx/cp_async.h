/*
 * cp.async: asynchronous copies from global to shared memory. A thread waits for its own; a barrier
 * then makes them visible to the block.
 */
#pragma once

#include <stdint.h>

/* @bytes 16: copies 16 bytes past L1; 0: stores zeros without reading. Addresses are 16-byte
 * aligned. */
__device__ __forceinline__ void fa_cp_async_16_zfill(uint32_t shared, const void *global,
                                                     uint32_t bytes)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
	             "r"(bytes)
	             : "memory");
}

/* The same with 4 bytes; addresses are 4-byte aligned. */
__device__ __forceinline__ void fa_cp_async_4_zfill(uint32_t shared, const void *global,
                                                    uint32_t bytes)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
	             "r"(bytes)
	             : "memory");
}

__device__ __forceinline__ void fa_cp_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most @pending of this thread's groups are in flight. */
template <int pending> __device__ __forceinline__ void fa_cp_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
