/*
 * Results of requests. Called with the client's mutex held.
 *
 * A Completion on the socket or a record of the ring brings the result. The completion page, and
 * before it the device itself, may report success earlier. That is enough for fa_wait(), but
 * in_flight and stored results follow the socket and the records.
 */
#pragma once

#include "client/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest wait for the daemon to confirm a success that the device has signalled. */
#define FA_EARLY_NS FA_NS_PER_SEC

/* Stores the result of the next value. @text may be NULL. */
void fa_result_store(struct fa_client_stream *stream, int status, const char *text, size_t length,
                     uint64_t queued_ns, uint64_t started_ns, uint64_t finished_ns);
/* Reads the completion page. Returns 0: not finished, 1: succeeded, -1: finished, with any status.
 * @early: the device's signal counts. The caller needs only a pin of the connection. */
int fa_result_probe(const struct fa_client *client, uint32_t stream, uint64_t value, bool early);
/* Stores results from the ring's records, up to the first failure. Returns 1 if there were any,
 * else 0; -EPROTO: a record is missing. */
int fa_result_collect(struct fa_client *client, uint32_t stream);
