/* Finds the last of several thread blocks, or warps, by counting in global memory. */
#pragma once

#include "kernels/cuda/ptx/atomic.h"

#include <stdint.h>

/* Counts the caller, one thread; true for the last of @n, which then sees what all others stored
 * before. Counts of earlier launches are below this launch's epoch. */
__device__ __forceinline__ bool fa_arrive(uint64_t *counter, uint64_t epoch, uint32_t n)
{
	fa_atomic_max(counter, epoch << 16);
	return fa_atomic_add_ordered(counter, 1) + 1 == (epoch << 16) + n;
}
