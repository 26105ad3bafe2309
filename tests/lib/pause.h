/*
 * Pauses, named after their reason. Where there is an event (a readable descriptor, an exit, a line
 * of the log), wait for the event. Any thread and process; needs only libc.
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

/* Between two polls of memory or a file. *pause_ns starts at 0 and grows. */
static inline void fa_test_poll_pause(uint64_t *pause_ns)
{
	*pause_ns = !*pause_ns                 ? 20 * FA_NS_PER_US
	            : *pause_ns < FA_NS_PER_MS ? *pause_ns * 3 / 2
	                                       : *pause_ns;
	fa_test_pause_ns(*pause_ns);
}

/* Time for an event that must not happen. */
static inline void fa_test_quiet_ms(unsigned int ms)
{
	fa_test_pause_ns(ms * FA_NS_PER_MS);
}

/* Time is the subject of the test: a deadline, a grace period, CPU time. */
static inline void fa_test_elapse_ms(unsigned int ms)
{
	fa_test_pause_ns(ms * FA_NS_PER_MS);
}

/* The caller's next action falls into a random moment of concurrent work. */
static inline void fa_test_any_moment_us(uint64_t us)
{
	fa_test_pause_ns(us * FA_NS_PER_US);
}

/*
 * Time for another thread or process to sleep in a call. The test must hold even if it does not
 * sleep yet.
 */
static inline void fa_test_let_sleep_ms(unsigned int ms)
{
	fa_test_pause_ns(ms * FA_NS_PER_MS);
}

static inline void fa_test_work_us(uint64_t us)
{
	fa_test_pause_ns(us * FA_NS_PER_US);
}
