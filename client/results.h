/*
 * Results of requests, which a Completion on the socket or a record of the ring brings. The
 * completion page, and before it the device, may report success earlier: enough for fa_wait(), but
 * in_flight and stored results follow socket and records. With the client's mutex held.
 */
#pragma once

#include "client/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* For the daemon to confirm a success that the device has signalled. */
#define FA_EARLY_NS FA_NS_PER_SEC

/* Stores the result of the stream's next value. @text may be NULL. */
void fa_result_store(struct fa_client_stream *stream, int status, const char *text, size_t length,
                     uint64_t queued_ns, uint64_t started_ns, uint64_t finished_ns);
/* Reads the completion page. Returns 0: not finished, 1: succeeded, -1: finished, with any status.
 * @early: the device's signal counts. A pin of the connection suffices. */
int fa_result_probe(const struct fa_client *client, uint32_t stream, uint64_t value, bool early);
/* Reads the ring's records, up to the first failure. Returns 1 if there were any, else 0; -EPROTO:
 * a record is missing. */
int fa_result_collect(struct fa_client *client, uint32_t stream);
