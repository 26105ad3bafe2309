/* Atomic additions, fences, loads and stores with a scope; one PTX instruction per function. */
#pragma once

#include <stdint.h>

/* Adds with acq_rel order at device scope; returns the previous value. */
__device__ __forceinline__ uint64_t fa_atomic_add_ordered(uint64_t *address, uint64_t value)
{
	uint64_t before;

	asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
	             : "=l"(before)
	             : "l"(address), "l"(value)
	             : "memory");
	return before;
}

/* Adds with relaxed order at device scope; returns the previous value. */
__device__ __forceinline__ uint64_t fa_atomic_add(uint64_t *address, uint64_t value)
{
	uint64_t before;

	asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
	             : "=l"(before)
	             : "l"(address), "l"(value)
	             : "memory");
	return before;
}

/* As above, for counters that the blocks of a launch share. The emulator checks other counters. */
__device__ __forceinline__ uint64_t fa_atomic_count(uint64_t *address, uint64_t value)
{
	return fa_atomic_add(address, value);
}

__device__ __forceinline__ uint64_t fa_ld_relaxed_device(const uint64_t *address)
{
	uint64_t value;

	asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}

__device__ __forceinline__ uint64_t fa_ld_acquire_device(const uint64_t *address)
{
	uint64_t value;

	asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}

/* Stores with relaxed order at device scope; others may read the 8 or 16 bytes meanwhile. */
__device__ __forceinline__ void fa_st_relaxed_device(void *address, uint2 value)
{
	asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(address),
	             "l"((uint64_t)value.y << 32 | value.x)
	             : "memory");
}

__device__ __forceinline__ void fa_st_relaxed_device(void *address, uint4 value)
{
	asm volatile(
		"{.reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v;}" ::"l"(
			address),
		"l"((uint64_t)value.y << 32 | value.x), "l"((uint64_t)value.w << 32 | value.z)
		: "memory");
}

__device__ __forceinline__ uint2 fa_ld_relaxed_device_v2(const void *address)
{
	const uint64_t value = fa_ld_relaxed_device((const uint64_t *)address);

	return make_uint2((uint32_t)value, (uint32_t)(value >> 32));
}

__device__ __forceinline__ uint4 fa_ld_relaxed_device_v4(const void *address)
{
	uint64_t low, high;

	asm volatile("{.reg .b128 v; ld.relaxed.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v;}"
	             : "=l"(low), "=l"(high)
	             : "l"(address)
	             : "memory");
	return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high,
	                  (uint32_t)(high >> 32));
}

__device__ __forceinline__ uint64_t fa_ld_relaxed_system(const uint64_t *address)
{
	uint64_t value;

	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}

__device__ __forceinline__ uint64_t fa_ld_acquire_system(const uint64_t *address)
{
	uint64_t value;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}

/* If it is @expected, *address becomes @value; relaxed at device scope. Returns what it was. */
__device__ __forceinline__ uint64_t fa_atomic_swap(uint64_t *address, uint64_t expected,
                                                   uint64_t value)
{
	uint64_t before;

	asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
	             : "=l"(before)
	             : "l"(address), "l"(expected), "l"(value)
	             : "memory");
	return before;
}

/* Raises *address to @value, with relaxed order at device scope. */
__device__ __forceinline__ void fa_atomic_max(uint64_t *address, uint64_t value)
{
	asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(address), "l"(value)
	             : "memory");
}

__device__ __forceinline__ void fa_fence_device(void)
{
	asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

__device__ __forceinline__ void fa_fence_system(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

__device__ __forceinline__ void fa_st_relaxed_system(uint64_t *address, uint64_t value)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ void fa_st_relaxed_system(uint32_t *address, uint32_t value)
{
	asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void fa_st_relaxed_system(uint32_t *address, uint4 value)
{
	asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address),
	             "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
	             : "memory");
}
