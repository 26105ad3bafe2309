/* Checks of numbers that client and daemon share. */
#pragma once

#include <math.h>
#include <stddef.h>

/* Returns @n if all are finite. */
static inline size_t fa_first_not_finite(const float *numbers, size_t n)
{
	size_t i = 0;

	while (i < n && isfinite(numbers[i]))
		++i;
	return i;
}

/* A bad sink is NaN or infinite; @n: none is. -inf is good, without weight. */
static inline size_t fa_first_bad_sink(const float *sinks, size_t n)
{
	size_t i = 0;

	while (i < n && sinks[i] < INFINITY)
		++i;
	return i;
}
