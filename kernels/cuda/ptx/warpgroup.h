/* Register counts of warpgroups, and election of a thread. */
#pragma once

#include <stdint.h>

/* Executed by all threads of the warpgroup. */

template <int registers> __device__ __forceinline__ void fa_setmaxnreg_dec(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* Waits until enough registers have been released. */
template <int registers> __device__ __forceinline__ void fa_setmaxnreg_inc(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/* Returns true for one thread of a warp; all threads of the warp call this. */
__device__ __forceinline__ bool fa_elect(void)
{
	uint32_t chosen;

	asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p;}"
	             : "=r"(chosen));
	return chosen != 0;
}
