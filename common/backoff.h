/*
 * Decides whether a thread spins before it sleeps. A spin saves a wake-up if the event comes
 * soon, and wastes the CPU if not: after FA_BACKOFF_FAILURES spins in a row without the event,
 * some waits sleep at once. All zeros is a new back-off. Not thread-safe.
 */
#pragma once

#include <stdbool.h>

#define FA_BACKOFF_FAILURES 4

struct fa_backoff {
	unsigned int failures; /* spins in a row without the event */
	unsigned int skips;    /* waits left that sleep at once */
};

/* True if the next wait may spin; does not count as one. */
static inline bool fa_backoff_may_spin(const struct fa_backoff *backoff)
{
	return !backoff->skips;
}

/* Call before each wait, which may spin if this returns true. */
static inline bool fa_backoff_next(struct fa_backoff *backoff)
{
	if (!backoff->skips)
		return true;
	--backoff->skips;
	return false;
}

/* The event came during the spin. */
static inline void fa_backoff_succeeded(struct fa_backoff *backoff)
{
	backoff->failures = 0;
}

/* The spin ended without the event. After too many such spins the next @skips waits do not spin. */
static inline void fa_backoff_failed(struct fa_backoff *backoff, unsigned int skips)
{
	if (++backoff->failures < FA_BACKOFF_FAILURES)
		return;
	backoff->failures = 0;
	backoff->skips = skips;
}
