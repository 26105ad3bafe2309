/* Arithmetic on lengths and positions. */
#pragma once

#include <stdint.h>

static inline int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static inline int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static inline int64_t clamp64(int64_t x, int64_t low, int64_t high)
{
	return x < low ? low : x > high ? high : x;
}

static inline int64_t floor_div(int64_t a, int64_t b)
{
	return a / b - (a % b < 0);
}

/* Returns the first position of @position's chunk. */
static inline int64_t chunk_begin(int64_t position, int64_t chunk_tokens)
{
	int64_t in_chunk = position % chunk_tokens;

	return position - (in_chunk < 0 ? in_chunk + chunk_tokens : in_chunk);
}

/* @far if the window is unbounded. */
static inline int64_t window(int64_t given, int64_t far)
{
	return given < 0 ? far : min64(given, far);
}
