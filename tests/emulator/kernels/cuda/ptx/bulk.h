#pragma once
#include "tests/emulator/emulator.h"

static inline uint64_t fa_bulk_policy_normal(void)
{
	return 0;
}

static inline uint64_t fa_bulk_policy_once(void)
{
	return 0;
}

static inline void fa_bulk_prefetch(const void *, uint32_t)
{
}

static inline void fa_bulk_load(uint32_t shared, const void *global, uint32_t bytes,
                                uint32_t barrier, uint64_t policy)
{
	fa_emulated_bulk(shared, global, bytes, barrier);
}
