/*
 * A session's timeline: two memories of 64 slots each, a cache line for every slot. One
 * the client writes, from its CPU or its GPU's streams; one only the daemon writes, and
 * the client maps it read-only. Each side looks at the other's words only to learn how far
 * it is: what a client can write is never believed to be anything else.
 *
 * Values of a slot only grow, counted round the clock: a slot has reached v once
 * (int64_t)(value - v) >= 0.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FA_TIMELINE_SLOTS 64
#define FA_TIMELINE_BYTES 4096 /* of each of both */

/* The client's. */
struct fa_timeline_in {
	_Atomic uint64_t value;
	_Atomic uint32_t sleepers; /* in the daemon's slot of that number; they want a wake-up */
	uint32_t reserved[13];
};

/*
 * The daemon's. failed, status and then value (release) are written: whoever has seen
 * value (acquire) sees them. When the session has ended, or its daemon died, every value
 * grows by FA_TIMELINE_RELEASE, with status -ECONNRESET, so that nobody waits any longer.
 */
struct fa_timeline_out {
	_Atomic uint64_t value;
	_Atomic uint64_t failed; /* value of the last request that failed; 0: none */
	_Atomic int32_t status;  /* its error */
	/* Grows with every write: what sleepers sleep on (a futex), for some milliseconds at a
	 * time, as of very many not all are woken. */
	_Atomic uint32_t changes;
	uint32_t reserved[10];
};

#define FA_TIMELINE_RELEASE (1ull << 62)

_Static_assert(sizeof(struct fa_timeline_in) == 64 && sizeof(struct fa_timeline_out) == 64,
               "one cache line");
_Static_assert(FA_TIMELINE_SLOTS * sizeof(struct fa_timeline_in) == FA_TIMELINE_BYTES,
               "the slots fill the page");

static inline bool fa_timeline_reached(uint64_t value, uint64_t wanted)
{
	return (int64_t)(value - wanted) >= 0;
}
