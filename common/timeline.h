/*
 * A session's timeline: 64 slots that the client writes, from its CPU or its GPU's streams, and 64
 * that only the daemon writes and the client maps read-only. Each has its own cache line. The
 * daemon takes a client's values for progress and nothing else. Values only grow, modulo 2^64: a
 * slot has reached v once (int64_t)(value - v) >= 0.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FA_TIMELINE_SLOTS 64
#define FA_TIMELINE_BYTES 4096 /* of either side */

/* Written by the client. */
struct fa_timeline_in {
	_Atomic uint64_t value;
	_Atomic uint32_t sleepers; /* on the daemon's slot of this index */
	uint32_t reserved[13];
};

/*
 * The daemon's: it writes failed and status, then value (release). When the session has ended or
 * its daemon has died, every value grows by FA_TIMELINE_RELEASE, with status -ECONNRESET, which
 * ends all waits.
 */
struct fa_timeline_out {
	_Atomic uint64_t value;
	_Atomic uint64_t failed; /* last request that failed; 0: none */
	_Atomic int32_t status;  /* that request's error */
	/* Grows with every write. A futex for sleepers, for some milliseconds at a time: of very
	 * many not all are woken. */
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
