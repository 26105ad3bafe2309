#pragma once
#include "tests/emulator/emulator.h"

template <int registers> static inline void fa_setmaxnreg_dec(void)
{
}

template <int registers> static inline void fa_setmaxnreg_inc(void)
{
}

/* All threads of the warp call it. */
static inline bool fa_elect(void)
{
	fa_emulated_warp_exchange(0);
	return threadIdx.x % 32 == 0;
}
