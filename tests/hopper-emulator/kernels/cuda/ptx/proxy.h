#pragma once
#include "tests/hopper-emulator/hopper.h"

static inline void fa_proxy_fence_shared(void)
{
	fa_hopper_fence();
}
