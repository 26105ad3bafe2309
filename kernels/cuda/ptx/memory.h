/* Shared memory by its 32-bit address, prefetch, special registers. */
#pragma once

#include <stdint.h>

__device__ __forceinline__ uint32_t fa_shared_address(const void *pointer)
{
	return (uint32_t)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void fa_st_shared(uint32_t address, uint32_t value)
{
	asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t fa_ld_shared(uint32_t address)
{
	uint32_t value;

	asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
	return value;
}

__device__ __forceinline__ void fa_st_shared_v4(uint32_t address, uint4 value)
{
	asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
	             "r"(value.y), "r"(value.z), "r"(value.w)
	             : "memory");
}

__device__ __forceinline__ uint4 fa_ld_shared_v4(uint32_t address)
{
	uint4 value;

	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
	             : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
	             : "r"(address)
	             : "memory");
	return value;
}

__device__ __forceinline__ void fa_st_global_v4(void *to, uint4 value)
{
	*(uint4 *)to = value;
}

__device__ __forceinline__ void fa_prefetch(const void *address)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

__device__ __forceinline__ void fa_opaque(const void *&address)
{
	asm volatile("" : "+l"(address));
}

/* Read again at each call. */
__device__ __forceinline__ int32_t fa_block_index(void)
{
	int32_t index;

	asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
	return index;
}

/* Read again at each call. */
__device__ __forceinline__ uint32_t fa_thread_index(void)
{
	uint32_t y;

	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(y));
	return y;
}
