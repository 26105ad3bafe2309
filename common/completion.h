/*
 * The completion page: one memfd for each session, written by the daemon alone
 * (sealed with F_SEAL_FUTURE_WRITE once the daemon has mapped it) and mapped
 * read-only by the client. Slot i belongs to stream i of the session. The page
 * saves a client that spins the trip through its socket; the daemon itself
 * never reads it and releases nothing because of it.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FA_COMPLETION_SLOTS 64
#define FA_COMPLETION_PAGE_BYTES 4096
#define FA_COMPLETION_EARLY 8

/*
 * Values of a stream finish in order. Request v is finished once completed >= v
 * (acquire); if failed < v at that time, and no later, it succeeded. Otherwise
 * the reply on the socket tells. The writer stores failed first, then
 * completed (release).
 *
 * The device itself may tell sooner that request v has succeeded, of which neither a record
 * nor anything else is known then: all of early are v's low half, which is not 0, whether
 * completed >= v or not. It does so only while nothing else of the stream is in flight.
 * Perhaps it never does. Several of its threads may store one or more of the words each, so
 * that it takes all of them. Words that another request has left are made to differ among one
 * another, every 2^31 requests, before they could be taken for those of one 2^32 later.
 */
struct fa_completion_slot {
	_Atomic uint64_t completed; /* highest value that is finished */
	_Atomic uint64_t failed;    /* highest value that finished with an error; 0: none */
	_Atomic uint32_t early[FA_COMPLETION_EARLY];
	uint64_t reserved[2];
};

_Static_assert(sizeof(struct fa_completion_slot) == 64, "one cache line");
_Static_assert(FA_COMPLETION_SLOTS * sizeof(struct fa_completion_slot) == FA_COMPLETION_PAGE_BYTES,
               "the slots fill the page");

/* Whether the device has told the end of request @value (acquire). */
static inline bool fa_completion_is_early(const struct fa_completion_slot *slot, uint64_t value)
{
	for (int i = 0; i < FA_COMPLETION_EARLY; i++)
		if (atomic_load_explicit(&slot->early[i], memory_order_acquire) != (uint32_t)value)
			return false;
	return (uint32_t)value != 0;
}

/* Words that were left long ago: no request's. Nothing of the stream is in flight. */
static inline void fa_completion_clear_early(struct fa_completion_slot *slot)
{
	for (uint32_t i = 0; i < FA_COMPLETION_EARLY; i++)
		atomic_store_explicit(&slot->early[i], i, memory_order_relaxed);
}
