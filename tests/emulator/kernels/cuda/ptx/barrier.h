#pragma once
#include "tests/emulator/emulator.h"

static inline void fa_barrier_sync(uint32_t id, uint32_t threads)
{
	fa_emulated_barrier(id, threads, false);
}

static inline void fa_barrier_arrive(uint32_t id, uint32_t threads)
{
	fa_emulated_arrive(id, threads);
}

static inline bool fa_barrier_any(uint32_t id, uint32_t threads, bool value)
{
	return fa_emulated_barrier(id, threads, value);
}
