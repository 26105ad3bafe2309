#pragma once
#include "tests/hopper-emulator/hopper.h"

static inline void fa_barrier_sync(uint32_t id, uint32_t threads)
{
	fa_emulated_barrier(id, threads, false);
}

static inline void fa_barrier_arrive(uint32_t id, uint32_t threads)
{
	fa_hopper_arrive(id, threads);
}
