#pragma once
#include "tests/emulator/emulator.h"

static inline uint64_t fa_tma_policy_keep(void)
{
	return 0;
}

static inline uint64_t fa_tma_policy_once(void)
{
	return 0;
}

/* Here a map holds the address of the test's struct fa_cuda_map. */
static inline void fa_tma_load(uint32_t shared, const void *map, uint32_t barrier, int32_t x,
                               int32_t y, int32_t z, int32_t w, uint64_t policy)
{
	fa_emulated_box(shared, *(const void *const *)map, barrier, { x, y, z, w });
}

static inline void fa_tma_prefetch_map(const void *map)
{
}

static inline void fa_tma_prefetch(const void *map, int32_t x, int32_t y, int32_t z, int32_t w,
                                   uint64_t policy)
{
}
