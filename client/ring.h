/*
 * The client's end of a submission ring (ring_setup.h). Guarded like the connection; with a pin,
 * its memory, records and wake-up socket may be used without the mutex. A record completes a
 * request; after a failure a Completion on the socket has the error text.
 */
#pragma once

#include "common/clock.h"
#include "common/error.h"
#include "common/results.h"
#include "common/ring.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* First back-off after a connection got no ring. */
#define FA_RING_RETRY_FIRST_NS (100 * FA_NS_PER_MS)

struct fa_client_ring {
	void *memory; /* NULL: there is no ring */
	struct fa_ring_producer end;
	const struct fa_record *records;
	uint32_t n_records;
	int doorbell; /* eventfd, written here */
	int wake;     /* socket, read here */
	uint64_t put_ns;
};

/* Sets those @fds that it keeps to -1. */
int fa_client_ring_open(const struct fa_wire_ring_reply *reply, int *fds, struct fa_error *error,
                        struct fa_client_ring *ret_ring);
void fa_client_ring_close(struct fa_client_ring *ring);

bool fa_client_ring_is_woken(const struct fa_client_ring *ring);
/* Consumes pending wake-ups. */
void fa_client_ring_drain(const struct fa_client_ring *ring);
/* Asks for a wake-up at a request's end. */
void fa_client_ring_arm(struct fa_client_ring *ring);
