/* Named barriers 1 to 15 (0 is __syncthreads) among @threads threads, whole warps. */
#pragma once

#include <stdint.h>

__device__ __forceinline__ void fa_barrier_sync(uint32_t id, uint32_t threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Syncs and returns whether @value holds for any thread. */
__device__ __forceinline__ bool fa_barrier_any(uint32_t id, uint32_t threads, bool value)
{
	uint32_t any;

	asm volatile("{.reg .pred p, q; setp.ne.b32 p, %3, 0; bar.red.or.pred q, %1, %2, p; "
	             "selp.b32 %0, 1, 0, q;}"
	             : "=r"(any)
	             : "r"(id), "r"(threads), "r"((uint32_t)value)
	             : "memory");
	return any != 0;
}

/* Arrives without waiting; @threads counts arrivals and waits. */
__device__ __forceinline__ void fa_barrier_arrive(uint32_t id, uint32_t threads)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
