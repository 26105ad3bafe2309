#pragma once
#include "tests/emulator/emulator.h"

/* A shared address is an offset in the block's shared memory. */
static inline uint32_t fa_shared_address(const void *pointer)
{
	return (uint32_t)((const char *)pointer - shared_memory);
}

static inline void fa_st_shared(uint32_t address, uint32_t value)
{
	fa_emulated_store(address, &value, 4);
}

static inline uint32_t fa_ld_shared(uint32_t address)
{
	uint32_t value;

	memcpy(&value, fa_emulated_shared(address, 4), 4);
	return value;
}

static inline void fa_st_shared_v4(uint32_t address, uint4 value)
{
	fa_emulated_store(address, &value, 16);
}

static inline uint4 fa_ld_shared_v4(uint32_t address)
{
	uint4 value;

	memcpy(&value, fa_emulated_shared(address, 16), 16);
	return value;
}

static inline void fa_st_global_v4(void *to, uint4 value)
{
	memcpy(to, &value, 16);
	fa_emulated_completion_store();
}

static inline void fa_prefetch(const void *address)
{
	(void)*(const volatile char *)address;
}

static inline void fa_opaque(const void *&)
{
}

static inline int32_t fa_block_index(void)
{
	return (int32_t)blockIdx.x;
}

static inline uint32_t fa_thread_index(void)
{
	return threadIdx.x;
}
