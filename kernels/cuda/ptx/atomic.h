/* What blocks tell one another through global memory. */
#pragma once

#include <stdint.h>

/* Acquire and release at the scope of the device: the value before. */
__device__ __forceinline__ unsigned long long
fa_atomic_cas(unsigned long long *address, unsigned long long expected, unsigned long long value)
{
	unsigned long long before;

	asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
	             : "=l"(before)
	             : "l"(address), "l"(expected), "l"(value)
	             : "memory");
	return before;
}

__device__ __forceinline__ unsigned long long fa_ld_relaxed(const unsigned long long *address)
{
	unsigned long long value;

	asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}
