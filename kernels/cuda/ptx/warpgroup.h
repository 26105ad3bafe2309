/* A warpgroup's share of the registers, and one thread of a warp. */
#pragma once

#include <stdint.h>

/* All threads of the warpgroup execute these. */

template <int registers> __device__ __forceinline__ void fa_registers_give(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* Waits until others have given enough. */
template <int registers> __device__ __forceinline__ void fa_registers_take(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/* Whether this is the one thread of its warp that was chosen; all of the warp ask. */
__device__ __forceinline__ bool fa_elect(void)
{
	uint32_t chosen;

	asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p;}"
	             : "=r"(chosen));
	return chosen != 0;
}
