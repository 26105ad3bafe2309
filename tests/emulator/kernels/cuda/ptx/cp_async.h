#pragma once
#include "tests/emulator/emulator.h"

static inline void fa_cp_async_16_zfill(uint32_t shared, const void *global, uint32_t bytes)
{
	fa_emulated_copy(shared, global, bytes, 16 - bytes);
}

static inline void fa_cp_async_4_zfill(uint32_t shared, const void *global, uint32_t bytes)
{
	fa_emulated_copy(shared, global, bytes, 4 - bytes);
}

static inline void fa_cp_async_commit(void)
{
	fa_emulated_commit();
}

template <int pending> static inline void fa_cp_async_wait(void)
{
	fa_emulated_wait(pending);
}
