/* Stands in for the header of the same name. */
#pragma once
#include "tests/emulator/emulator.h"

#include <chrono>
#include <stdint.h>
#include <stdlib.h>

static inline uint64_t fa_timer_ns(void)
{
	return (uint64_t)std::chrono::steady_clock::now().time_since_epoch().count();
}

/* One launch ends before the next begins; but what was not awaited is not to be touched. */
static inline void fa_await_launch_ahead(void)
{
	fa_emulated_await();
}

/* Launches that are to do nothing are not emulated. */
static inline void fa_exit(void)
{
	abort();
}
