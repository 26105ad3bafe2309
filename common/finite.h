/* Numbers of heads that both sides check. */
#pragma once

#include <math.h>
#include <stddef.h>

/* Returns the index of the first number that is not finite; @n: all are. */
static inline size_t fa_first_not_finite(const float *numbers, size_t n)
{
	size_t i = 0;

	while (i < n && isfinite(numbers[i]))
		++i;
	return i;
}

/* Returns the index of the first sink that is NaN or infinite; @n: there is none. -inf is a sink
 * without weight. */
static inline size_t fa_first_bad_sink(const float *sinks, size_t n)
{
	size_t i = 0;

	while (i < n && sinks[i] < INFINITY)
		++i;
	return i;
}
