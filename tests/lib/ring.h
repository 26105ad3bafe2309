/*
 * The submission ring of a raw connection, written through common/ring.h or by hand. struct
 * fa_raw_ring owns its descriptors and mappings.
 */
#pragma once

#include "common/results.h"
#include "common/ring.h"
#include "tests/lib/raw.h"

struct fa_raw_ring {
	struct fa_ring_producer end;
	unsigned char *memory;
	uint64_t bytes;
	const struct fa_record *records;
	uint32_t n_records;
	int ring_fd, results_fd, doorbell, wake;
};

/* @bytes: 0: the default size. */
void fa_raw_ring_open(struct fa_raw *raw, struct fa_raw_ring *ring, uint64_t bytes);
void fa_raw_ring_close(struct fa_raw_ring *ring);

/* Also rings the doorbell if needed; -EAGAIN: the ring is full. */
int fa_raw_ring_put(struct fa_raw_ring *ring, const struct fa_wire_message *message);
int fa_raw_ring_put_bytes(struct fa_raw_ring *ring, const void *bytes, size_t length);
void fa_raw_ring_bell(struct fa_raw_ring *ring);

/* Waits for space. */
void fa_raw_ring_send(struct fa_raw_ring *ring, const struct fa_wire_message *message);
void fa_raw_ring_marker(struct fa_raw_ring *ring, uint32_t stream, uint64_t value);

/* Returns the completion record of @value. */
struct fa_outcome fa_raw_ring_wait(const struct fa_raw *raw, const struct fa_raw_ring *ring,
                                   uint32_t stream, uint64_t value);
