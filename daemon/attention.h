/*
 * Attention requests from the message to the completion: checked, charged, handed to
 * the engine with references to their buffers, and answered when they come back.
 * Loop thread.
 */
#pragma once

#include "common/error.h"
#include "daemon/session.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Takes the request, whether it is good or not: a refused one goes through the
 * engine all the same, so that its value is finished in its turn. Returns 0, or
 * -EPROTO with a sentence if the stream's values are out of order.
 */
int fa_attention_submit(struct fa_session *session, const struct fa_wire_message *message,
                        size_t n_fds, uint64_t received_ns, struct fa_error *error);

/* Asks that all requests in flight end early, with @status. Their streams stay, so
 * that what comes later is still answered in its turn. */
void fa_attention_cancel_all(struct fa_session *session, int status);

/* Answers a request that the engine gave back, and frees it. */
void fa_attention_finish(struct fa_session *session, struct fa_request *request);
