/*
 * From bytes to handlers: one table says for each message what state it needs, what
 * it may carry, and who answers it. Loop thread.
 */
#pragma once

#include "daemon/session/call.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Handles one packet. Handlers take what they keep of @fds by setting it to -1. @lost: more
 * had come than those, and could not be received: what wants them is refused, with -EMFILE.
 * Returns whether it pays to look for the next packet at once: it does not if the
 * client was answered and now has its turn.
 */
bool fa_dispatch(struct fa_session *session, const void *bytes, size_t length, int *fds,
                 size_t n_fds, bool lost);

/* Handles one message that came through the session's ring at @received_ns. */
void fa_dispatch_ring(struct fa_session *session, const void *bytes, size_t length,
                      uint64_t received_ns);
