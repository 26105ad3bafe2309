/*
 * Decides if a thread spins before it sleeps. A spin saves a wake-up if the event comes soon, and
 * else wastes the CPU: after FA_BACKOFF_FAILURES spins in vain some waits sleep at once. Starts
 * zeroed. Not thread-safe.
 */
#pragma once

#include <stdbool.h>

#define FA_BACKOFF_FAILURES 4

struct fa_backoff {
	unsigned int failures; /* spins in vain, in a row */
	unsigned int skips;    /* waits left without a spin */
};

/* Does not count as a wait. */
static inline bool fa_backoff_may_spin(const struct fa_backoff *backoff)
{
	return !backoff->skips;
}

/* Call it before each wait; true: the wait may spin. */
static inline bool fa_backoff_next(struct fa_backoff *backoff)
{
	if (!backoff->skips)
		return true;
	--backoff->skips;
	return false;
}

/* The event came during a spin. */
static inline void fa_backoff_succeeded(struct fa_backoff *backoff)
{
	backoff->failures = 0;
}

/* A spin was in vain. After too many, @skips waits do not spin. */
static inline void fa_backoff_failed(struct fa_backoff *backoff, unsigned int skips)
{
	if (++backoff->failures < FA_BACKOFF_FAILURES)
		return;
	backoff->failures = 0;
	backoff->skips = skips;
}
