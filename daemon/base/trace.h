/*
 * A trace of requests and threads as Chrome's and Perfetto's JSON (fad --trace). Any thread records
 * into a bounded queue, which a thread writes to the file. What exceeds the queue or the file's
 * limit is dropped and counted.
 */
#pragma once

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_trace;

/* NULL: no trace. Changes only while no other thread records. */
extern struct fa_trace *fa_trace_active;

static inline bool fa_trace_on(void)
{
	return __builtin_expect(fa_trace_active != NULL, 0);
}

#define FA_TRACE_BYTES_MAX ((uint64_t)256 << 20)

/* Makes or replaces the file, of about @bytes_max at most. */
int fa_trace_open(const char *path, uint64_t bytes_max, struct fa_error *error);

struct fa_trace_result {
	uint64_t n_written; /* records */
	uint64_t n_dropped;
	int error; /* of the file; 0: none */
};

/* The file is complete then. No other thread may record. */
void fa_trace_close(struct fa_trace_result *ret_result);

/* Without a trace these do nothing. Names must be static. */

/* Records what the calling thread did since @begin_ns. Slices of a thread do not overlap in
 * part. */
void fa_trace_slice(const char *name, uint64_t begin_ns, uint64_t session, uint64_t id);

struct fa_trace_request {
	const char *name;
	uint64_t session, value;
	uint32_t stream;
	int status;
	/* CLOCK_MONOTONIC. started_ns is 0 if the device did not get it. */
	uint64_t queued_ns, started_ns, finished_ns;
};

void fa_trace_request(const struct fa_trace_request *request);
