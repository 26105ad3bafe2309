/* Time, and the end of threads. */
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
