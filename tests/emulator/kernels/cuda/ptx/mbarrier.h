#pragma once
#include "tests/emulator/emulator.h"

static inline void fa_mbarrier_init(uint32_t barrier, uint32_t count)
{
	fa_emulated_mbarrier_init(barrier, count);
}

static inline void fa_mbarrier_init_fence(void)
{
}

static inline void fa_mbarrier_arrive(uint32_t barrier)
{
	fa_emulated_mbarrier_arrive(barrier, 0);
}

static inline void fa_mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
	fa_emulated_mbarrier_arrive(barrier, bytes);
}

static inline bool fa_mbarrier_test(uint32_t barrier, uint32_t parity)
{
	return fa_emulated_mbarrier_test(barrier, parity);
}

static inline void fa_mbarrier_wait(uint32_t barrier, uint32_t parity)
{
	fa_emulated_mbarrier_wait(barrier, parity);
}
