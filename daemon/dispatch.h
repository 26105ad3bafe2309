/*
 * From bytes to handlers: one table says for each message what state it needs, what
 * it may carry, and who answers it. Loop thread.
 */
#pragma once

#include "daemon/session.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Handles one packet. Handlers take what they keep of @fds by setting it to -1.
 * Returns whether it pays to look for the next packet at once: it does not if the
 * client was answered and now has its turn.
 */
bool fa_dispatch(struct fa_session *session, const void *bytes, size_t length, int *fds,
                 size_t n_fds);

/* Answers a request that came back from the engine, and frees it. */
void fa_dispatch_finished(struct fa_request *request);
