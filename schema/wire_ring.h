/* The messages of the request path; part of wire.h. */
#pragma once

#include <stdint.h>

/* HelloReply.features: RingSetup. */
#define FA_WIRE_FEATURE_RING (1ull << 0)
/* HelloReply.features: StepBegin through the ring. */
#define FA_WIRE_FEATURE_STEP_RING (1ull << 1)

#define FA_WIRE_RING_FDS 4

/*
 * Asks for the session's submission ring, which then carries requests of streams, encoded like
 * packets. Answered by RingReply, or by Reply with an error: -EEXIST if the session has a ring.
 */
struct fa_wire_ring_setup {
	uint64_t bytes; /* of data wanted; 0: the daemon chooses */
};

/*
 * Carries four fds: the ring (common/ring.h), writable by both; the results (common/results.h),
 * writable by the daemon; an eventfd by which the client wakes the daemon; and the read end of a
 * pipe by which the daemon wakes the client (the client could make the daemon block on a shared
 * eventfd). A request through the ring is answered by its record in the results, and by a
 * Completion only if it failed.
 */
struct fa_wire_ring_reply {
	uint64_t bytes;         /* of data, a power of two */
	uint64_t results_bytes; /* size of all results */
	uint32_t records;       /* per stream, a power of two */
};

/* Without work: finishes when all earlier requests of its stream have. value as in Attention;
 * answered by Completion. */
struct fa_wire_marker {
	uint32_t stream;
	uint64_t value;
};
