#pragma once
#include "tests/hopper-emulator/hopper.h"

/* An address is a place in the block's shared memory. */
static inline uint32_t fa_shared_address(const void *pointer)
{
	return (uint32_t)((const char *)pointer - shared_memory);
}

static inline void fa_st_shared_v4(uint32_t address, uint4 value)
{
	fa_hopper_store(address, value);
}

static inline int32_t fa_block_index(void)
{
	return (int32_t)blockIdx.x;
}
