#pragma once
#include "tests/cuda-emulator/emulator.h"

static inline unsigned long long
fa_atomic_cas(unsigned long long *address, unsigned long long expected, unsigned long long value)
{
	const unsigned long long before = *address;

	if (before == expected)
		*address = value;
	return before;
}

static inline unsigned long long fa_ld_relaxed(const unsigned long long *address)
{
	return *address;
}
