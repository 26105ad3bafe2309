/* Time: nanoseconds of CLOCK_MONOTONIC. */
#pragma once

#include <stdint.h>
#include <time.h>

#define FA_NS_PER_SEC 1000000000ull
#define FA_NS_PER_MS 1000000ull
#define FA_NS_PER_US 1000ull
#define FA_NS_NEVER UINT64_MAX

static inline uint64_t fa_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * FA_NS_PER_SEC + (uint64_t)now.tv_nsec;
}

/* Returns the thread's own processor time. */
static inline uint64_t fa_thread_cpu_ns(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * FA_NS_PER_SEC + (uint64_t)used.tv_nsec;
}

/* Saturates: FA_NS_NEVER means never. */
static inline uint64_t fa_deadline_ns(uint64_t timeout_ns)
{
	uint64_t deadline;

	if (timeout_ns == FA_NS_NEVER || __builtin_add_overflow(fa_now_ns(), timeout_ns, &deadline))
		return FA_NS_NEVER;
	return deadline;
}
