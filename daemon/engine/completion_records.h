/*
 * Records of finished requests (common/results.h) that a client reads, and the socket that wakes
 * it. Made by the loop thread, written by the engine. Each stream that uses them holds a reference;
 * the last unref gives the memory back, even if the client still maps it. Not a pipe: a client
 * whose memory has to be paged in would hold its lock and block our writes.
 */
#pragma once

#include "common/completion.h"
#include "common/results.h"
#include "common/ring.h"

#include <stdbool.h>

struct fa_completion_records {
	atomic_uint n_refs;
	void *memory; /* the client's ring; its words say if the client sleeps */
	uint64_t memory_bytes;
	struct fa_record *entries;
	uint32_t n_records; /* per stream */
	int wake_fd;
	/* The daemon ends, and the client has yet to read them. Set by any holder of a
	 * reference. */
	bool keep_memory;

	struct fa_completion_records *next;
};

/*
 * @ret_fds, for the client: its ring of @bytes, its records (read-only), its end of the socket
 * pair.
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

static inline void fa_completion_records_record(struct fa_completion_records *records, uint32_t id,
                                                uint64_t value, const struct fa_outcome *outcome)
{
	fa_record_write(&records->entries[fa_record_index(id, records->n_records, value)], value,
	                outcome);
}

void fa_completion_records_wake(struct fa_completion_records *records);
