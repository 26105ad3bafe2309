/* Timer, exit, and dependence between launches; one PTX instruction per function. */
#pragma once

#include <stdint.h>

/* Returns device-wide nanoseconds, in steps of up to 1 us. */
__device__ __forceinline__ uint64_t fa_timer_ns(void)
{
	uint64_t now;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
	return now;
}

/* Ends the thread. The compiler assumes that this function returns. */
__device__ __forceinline__ void fa_exit(void)
{
	asm volatile("exit;" ::: "memory");
}

/* griddepcontrol.wait: waits until the preceding launch in the stream has completed and its writes
 * are visible. For every thread that reads what earlier launches may write, or writes what they may
 * read. What was complete before the preceding launch began needs no wait. Compute capability 9.0
 * and later. */
__device__ __forceinline__ void fa_await_launch_ahead(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}
