/*
 * Records of finished requests (common/results.h) that a client reads, and the socket that wakes
 * it. Made by the loop thread; written by the engine for as long as a stream refers to it; each
 * holds a reference. The last one gives the memory back, although the client may still map it.
 *
 * A socket pair instead of a pipe: a write to our end never blocks on the client, whose reader
 * would hold a pipe's lock for as long as its memory takes to be paged in.
 */
#pragma once

#include "common/completion.h"
#include "common/results.h"
#include "common/ring.h"

#include <stdbool.h>

struct fa_completion_records {
	atomic_uint n_refs;
	void *memory; /* of the ring; its words say whether the client sleeps */
	uint64_t memory_bytes;
	struct fa_record *entries;
	uint32_t n_records; /* per stream */
	int wake_fd;
	/* The memory keeps its contents after the last reference: the daemon ends, and the client
	 * has yet to read them. Set by any holder of a reference. */
	bool keep_memory;

	/* The engine's list of clients to wake. */
	struct fa_completion_records *next;
};

/*
 * Makes the memory for rings of @bytes and for the records, and the socket pair. The client gets
 * ret_fds: its ring, its records (read-only), and its end of the sockets.
 */
int fa_completion_records_new(uint64_t bytes, uint32_t n_records,
                              struct fa_completion_records **ret_records, int ret_fds[3]);
struct fa_completion_records *fa_completion_records_ref(struct fa_completion_records *records);
struct fa_completion_records *fa_completion_records_unref(struct fa_completion_records *records);

static inline struct fa_ring_words *
fa_completion_records_words(struct fa_completion_records *records)
{
	return records->memory;
}

/* Records the end of job @value of stream @id. */
static inline void fa_completion_records_record(struct fa_completion_records *records, uint32_t id,
                                                uint64_t value, const struct fa_outcome *outcome)
{
	fa_record_write(&records->entries[fa_record_index(id, records->n_records, value)], value,
	                outcome);
}

/* Wakes the client. */
void fa_completion_records_wake(struct fa_completion_records *records);
