#pragma once
#include "tests/emulator/emulator.h"

#include <chrono>
#include <stdint.h>
#include <stdlib.h>

static inline uint64_t fa_timer_ns(void)
{
	return (uint64_t)std::chrono::steady_clock::now().time_since_epoch().count();
}

/* Launches never overlap here; the emulator checks that the wait was made. */
static inline void fa_await_launch_ahead(void)
{
	fa_emulated_await();
}

/* Launches behind a shut gate are not emulated. */
static inline void fa_exit(void)
{
	abort();
}
