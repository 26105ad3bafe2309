/*
 * Where a session's requests are recorded as they end (common/results.h), and how its
 * client is woken when it sleeps for them. Made and named by the loop thread; used by the
 * engine thread for as long as a stream refers to it. Each has references of its own. With
 * the last of them their memory is given back, although the client may still map it: the
 * connection was closed before. Not so when the daemon ends, as a client reads then what
 * has ended so far.
 *
 * The client is woken through a pair of sockets. A write to ours never waits, whatever the
 * client does with its own: flags are an end's alone, and no lock is held while the other
 * end's reader is at work (a pipe's is, for as long as its memory takes to come).
 */
#pragma once

#include "common/completion.h"
#include "common/results.h"
#include "common/ring.h"

#include <stdbool.h>

struct fa_completion_records {
	atomic_uint n_refs;
	void *memory; /* the ring's: the words say whether the client sleeps */
	uint64_t memory_bytes;
	struct fa_record *records;
	uint32_t n_records; /* of each stream */
	int wake_fd;
	bool stays; /* at the end: the client has yet to read it. Set by who has a reference. */

	/* The engine thread's: those that it is about to wake, linked. */
	struct fa_completion_records *next;
};

/*
 * Makes the memories, for rings of @bytes, and the sockets. The descriptors are what the client
 * gets: its ring, its results to read, and its end of the sockets.
 */
int fa_completion_records_new(uint64_t bytes, uint32_t n_records,
                              struct fa_completion_records **ret_results, int ret_fds[3]);
struct fa_completion_records *fa_completion_records_ref(struct fa_completion_records *results);
struct fa_completion_records *fa_completion_records_unref(struct fa_completion_records *results);

static inline struct fa_ring_words *
fa_completion_records_words(struct fa_completion_records *results)
{
	return results->memory;
}

/* Records the end of request @value of stream @id. */
static inline void fa_completion_records_record(struct fa_completion_records *results, uint32_t id,
                                                uint64_t value, const struct fa_outcome *outcome)
{
	fa_record_write(&results->records[fa_record_index(id, results->n_records, value)], value,
	                outcome);
}

/* Makes the client look. */
void fa_completion_records_wake(struct fa_completion_records *results);
