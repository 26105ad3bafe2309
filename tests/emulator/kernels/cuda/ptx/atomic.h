#pragma once
#include "tests/emulator/emulator.h"
#include "tests/emulator/yield.h"

static inline uint64_t fa_atomic_add_ordered(uint64_t *address, uint64_t value)
{
	*address += value;
	return *address - value;
}

static inline void fa_atomic_max(uint64_t *address, uint64_t value)
{
	*address = value > *address ? value : *address;
}

static inline uint64_t fa_atomic_swap(uint64_t *address, uint64_t expected, uint64_t value)
{
	const uint64_t before = *address;

	if (before == expected)
		*address = value;
	return before;
}

static inline uint64_t fa_atomic_add(uint64_t *address, uint64_t value)
{
	return fa_emulated_count(address, value);
}

static inline void fa_st_relaxed_device(void *address, uint2 value)
{
	fa_emulated_partial_store(address, &value, 8);
}

static inline void fa_st_relaxed_device(void *address, uint4 value)
{
	fa_emulated_partial_store(address, &value, 16);
}

static inline uint2 fa_ld_relaxed_device_v2(const void *address)
{
	uint2 value;

	fa_emulated_partial_load(address, &value, 8);
	return value;
}

static inline uint4 fa_ld_relaxed_device_v4(const void *address)
{
	uint4 value;

	fa_emulated_partial_load(address, &value, 16);
	return value;
}

static inline void fa_fence_device(void)
{
	fa_emulated_fence(false);
	fa_emulated_partial_fence();
}

static inline void fa_fence_system(void)
{
	fa_emulated_fence(true);
}

static inline void fa_st_relaxed_system(uint64_t *address, uint64_t value)
{
	fa_emulated_signal(address, value);
}

static inline void fa_st_relaxed_system(uint32_t *address, uint32_t value)
{
	fa_emulated_signal_early(address, 1, value);
}

static inline void fa_st_relaxed_system(uint32_t *address, uint4 value)
{
	fa_emulated_signal_early(address, 4, value.x);
}

static inline uint64_t fa_atomic_count(uint64_t *address, uint64_t value)
{
	return fa_atomic_add_ordered(address, value);
}

static inline uint64_t fa_ld_relaxed_device(const uint64_t *address)
{
	return *address;
}

static inline uint64_t fa_ld_acquire_device(const uint64_t *address)
{
	return *address;
}

static inline uint64_t fa_ld_relaxed_system(const uint64_t *address)
{
	return fa_emulated_load_word(address);
}

static inline uint64_t fa_ld_acquire_system(const uint64_t *address)
{
	return fa_emulated_load_word(address);
}
