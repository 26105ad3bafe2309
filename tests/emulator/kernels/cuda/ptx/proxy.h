#pragma once
#include "tests/emulator/emulator.h"

static inline void fa_proxy_fence_shared(void)
{
	fa_emulated_proxy_fence();
}
