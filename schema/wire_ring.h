/*
 * The messages of the request path, as plain C structs; part of wire.h.
 */
#pragma once

#include <stdint.h>

/* HelloReply.features: RingSetup is understood. */
#define FA_WIRE_FEATURE_RING (1ull << 0)

#define FA_WIRE_RING_FDS 4

/*
 * Asks for a submission ring, once in a session: from then on the same bytes may come
 * through it that come as packets, of the requests that belong to streams. Answered by
 * RingReply, or by Reply with an error: -EEXIST if the session has one.
 */
struct fa_wire_ring_setup {
	uint64_t bytes; /* wanted of the ring's data; 0: as many as the daemon thinks good */
};

/*
 * Carries four fds: the ring (common/ring.h), which both write; the results
 * (common/results.h), which only the daemon writes; an eventfd to which the client writes
 * to wake the daemon; and a pipe from which it reads something whenever the daemon wakes
 * it. (An eventfd that both hold would let the client make the daemon's write wait.) A
 * request that came through
 * the ring and succeeded is answered by its record among the results alone; one that
 * failed by a Completion as well.
 */
struct fa_wire_ring_reply {
	uint64_t bytes;         /* of the ring's data, a power of two */
	uint64_t results_bytes; /* of the whole memory of results */
	uint32_t records;       /* of each stream, a power of two */
};

/*
 * Does nothing: it is finished when all that came before it in its stream is. value as in
 * Attention; answered by Completion.
 */
struct fa_wire_marker {
	uint32_t stream;
	uint64_t value;
};
