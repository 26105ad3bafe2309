/* What blocks tell one another, and the host, through global memory. */
#pragma once

#include <stdint.h>

/* Acquire and release at the scope of the device: the value before. */
__device__ __forceinline__ uint64_t fa_atomic_add_ordered(uint64_t *address, uint64_t value)
{
	uint64_t before;

	asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
	             : "=l"(before)
	             : "l"(address), "l"(value)
	             : "memory");
	return before;
}

/* Relaxed, at the scope of the device: the value before. */
__device__ __forceinline__ uint64_t fa_atomic_add(uint64_t *address, uint64_t value)
{
	uint64_t before;

	asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
	             : "=l"(before)
	             : "l"(address), "l"(value)
	             : "memory");
	return before;
}

/* The same of a counter that blocks share, not one of blocks. */
__device__ __forceinline__ uint64_t fa_count(uint64_t *address, uint64_t value)
{
	return fa_atomic_add(address, value);
}

/* Relaxed, at the scope of the device. */
__device__ __forceinline__ uint64_t fa_ld_relaxed_device(const uint64_t *address)
{
	uint64_t value;

	asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}

/* Relaxed, at the scope of the system: what others than the device's threads wrote. */
__device__ __forceinline__ uint64_t fa_ld_relaxed_system(const uint64_t *address)
{
	uint64_t value;

	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}

/* Relaxed, at the scope of the device. */
__device__ __forceinline__ void fa_atomic_max(uint64_t *address, uint64_t value)
{
	asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(address), "l"(value)
	             : "memory");
}

/* Acquire and release, among all of the device. */
__device__ __forceinline__ void fa_fence_device(void)
{
	asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* Acquire and release, among all of the device and the host. */
__device__ __forceinline__ void fa_fence_system(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

__device__ __forceinline__ void fa_st_relaxed_system(uint64_t *address, uint64_t value)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
