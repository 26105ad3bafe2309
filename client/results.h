/*
 * Results of requests; with the client's mutex, except fa_result_probe().
 *
 * A result arrives as a Completion on the socket or as a record of the ring, and is stored. The
 * completion page tells of success earlier, and the device itself may tell it first. What the page
 * says is enough for fa_wait(); in_flight and the stored results follow the socket and the records
 * alone.
 */
#pragma once

#include "client/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A success that the device has signalled is confirmed by the daemon within microseconds, unless the
 * daemon dies; this is the longest wait for it. */
#define FA_EARLY_NS (100 * FA_NS_PER_MS)

/* Stores the result of the stream's next value. @text may be NULL. */
void fa_result_store(struct fa_client_stream *stream, int status, const char *text, size_t length,
                     uint64_t queued_ns, uint64_t started_ns, uint64_t finished_ns);
/* Reads the completion page: 0 if @value has not finished, 1 if it succeeded, -1 if it finished.
 * @early: a success that only the device has signalled counts. The connection is pinned, or the
 * mutex is held. */
int fa_result_probe(const struct fa_client *client, uint32_t stream, uint64_t value, bool early);
/* Stores what the ring's records say of the stream, up to the first failure. Returns 1 if anything
 * was stored, else 0. -EPROTO: a record that must be there is missing; the sentence is
 * fa_result_missing()'s. */
int fa_result_collect(struct fa_client *client, uint32_t stream);
