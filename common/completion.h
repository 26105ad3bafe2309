/*
 * The completion page: one memfd for each session, written by the daemon alone
 * (sealed with F_SEAL_FUTURE_WRITE once the daemon has mapped it) and mapped
 * read-only by the client. Slot i belongs to stream i of the session. The page
 * saves a client that spins the trip through its socket; the daemon itself
 * never reads it and releases nothing because of it.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#define FA_COMPLETION_SLOTS 64
#define FA_COMPLETION_PAGE_BYTES 4096

/*
 * Values of a stream finish in order. Request v is finished once completed >= v
 * (acquire); if failed < v at that time, and no later, it succeeded. Otherwise
 * the reply on the socket tells. The writer stores failed first, then
 * completed (release).
 */
struct fa_completion_slot {
	_Atomic uint64_t completed; /* highest value that is finished */
	_Atomic uint64_t failed;    /* highest value that finished with an error; 0: none */
	uint64_t reserved[6];
};

_Static_assert(sizeof(struct fa_completion_slot) == 64, "one cache line");
_Static_assert(FA_COMPLETION_SLOTS * sizeof(struct fa_completion_slot) == FA_COMPLETION_PAGE_BYTES,
               "the slots fill the page");
