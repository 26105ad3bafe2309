#pragma once
#include "tests/emulator/emulator.h"

template <int registers> static inline void fa_registers_give(void)
{
}

template <int registers> static inline void fa_registers_take(void)
{
}

/* All of the warp ask together. */
static inline bool fa_elect(void)
{
	fa_emulated_meet(0);
	return threadIdx.x % 32 == 0;
}
