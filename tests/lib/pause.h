/*
 * For what a test lets time pass. Whatever has an event is waited for instead: a descriptor
 * that becomes readable, a process that ends, a line of the daemon's log. The names say why
 * there is none. Works in any thread and process, and needs nothing but libc.
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

/* Between two looks at memory or a file that nobody tells of. Begin with 0; the pauses grow, so
 * that what comes soon is seen soon, and what takes long costs little. */
static inline void fa_test_poll_pause(uint64_t *pause_ns)
{
	*pause_ns = !*pause_ns                 ? 20 * FA_NS_PER_US
	            : *pause_ns < FA_NS_PER_MS ? *pause_ns * 3 / 2
	                                       : *pause_ns;
	fa_test_pause_ns(*pause_ns);
}

/* Something must not happen: it is given the time in which it would. */
static inline void fa_test_quiet_ms(unsigned int ms)
{
	fa_test_pause_ns(ms * FA_NS_PER_MS);
}

/* Time is what is tested: a deadline, a period of grace, processor time over a while. */
static inline void fa_test_elapse_ms(unsigned int ms)
{
	fa_test_pause_ns(ms * FA_NS_PER_MS);
}

/* What follows is to come at any moment of what others do meanwhile. */
static inline void fa_test_any_moment_us(uint64_t us)
{
	fa_test_pause_ns(us * FA_NS_PER_US);
}

/* Another thread or process is probably asleep in a call by then. Only it could tell, and it
 * sleeps; the test holds if it is not. */
static inline void fa_test_let_sleep_ms(unsigned int ms)
{
	fa_test_pause_ns(ms * FA_NS_PER_MS);
}

/* Stands for work that takes so long. */
static inline void fa_test_work_us(uint64_t us)
{
	fa_test_pause_ns(us * FA_NS_PER_US);
}
