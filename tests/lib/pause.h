/*
 * Pauses, by reason. Where there is an event (a readable descriptor, an exit, a line of the log),
 * wait for that instead. Any thread and process; needs only libc.
 */
#pragma once

#include "common/clock.h"

#include <stdint.h>
#include <time.h>

static inline void fa_test_pause_ns(uint64_t ns)
{
	struct timespec time = { .tv_sec = (time_t)(ns / FA_NS_PER_SEC),
		                 .tv_nsec = (long)(ns % FA_NS_PER_SEC) };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &time) != 0)
		;
}

/* Pause between two polls of memory or a file. *pause_ns starts at 0 and grows. */
static inline void fa_test_poll_pause(uint64_t *pause_ns)
{
	*pause_ns = !*pause_ns                 ? 20 * FA_NS_PER_US
	            : *pause_ns < FA_NS_PER_MS ? *pause_ns * 3 / 2
	                                       : *pause_ns;
	fa_test_pause_ns(*pause_ns);
}

/* Gives something that must not happen the time to happen. */
static inline void fa_test_quiet_ms(unsigned int ms)
{
	fa_test_pause_ns(ms * FA_NS_PER_MS);
}

/* Time is the subject of the test: a deadline, a grace period, CPU time. */
static inline void fa_test_elapse_ms(unsigned int ms)
{
	fa_test_pause_ns(ms * FA_NS_PER_MS);
}

/* Spreads what follows over random moments of concurrent work. */
static inline void fa_test_any_moment_us(uint64_t us)
{
	fa_test_pause_ns(us * FA_NS_PER_US);
}

/* Lets another thread or process go to sleep in a call. The test must hold if it did not. */
static inline void fa_test_let_sleep_ms(unsigned int ms)
{
	fa_test_pause_ns(ms * FA_NS_PER_MS);
}

/* Simulates work of this length. */
static inline void fa_test_work_us(uint64_t us)
{
	fa_test_pause_ns(us * FA_NS_PER_US);
}
