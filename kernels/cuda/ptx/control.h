/* Time, the end of threads, and launches that begin before the one ahead has ended. */
#pragma once

#include <stdint.h>

/* Of the device; it goes on in steps of up to a microsecond. */
__device__ __forceinline__ uint64_t fa_timer_ns(void)
{
	uint64_t now;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
	return now;
}

/* Ends the thread. The compiler takes it for something that returns: so it changes nothing of
 * what comes behind. */
__device__ __forceinline__ void fa_exit(void)
{
	asm volatile("exit;" ::: "memory");
}

/*
 * Waits until the launch ahead in the stream has ended and what it wrote is there, if this one was
 * launched to begin sooner (programmatic dependence); else there is nothing to wait for. By all
 * threads that read what an earlier launch may have written, or write what it may read. Whatever
 * was there before the launch ahead began is there without. Compute capability 9.0 and later.
 */
__device__ __forceinline__ void fa_await_launch_ahead(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}
