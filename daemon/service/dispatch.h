/*
 * From bytes to handlers: one table has for each message its handler, whether it may precede Hello,
 * how many descriptors it may carry, and whether it may come through a ring. Loop thread.
 */
#pragma once

#include "daemon/session/call.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Handles one packet. Handlers set entries of @fds that they keep to -1. @lost: more descriptors
 * came and could not be received; messages that need some fail with -EMFILE. Returns true if the
 * caller should read on at once: clients send such messages without waiting for the answer.
 */
bool fa_dispatch(struct fa_session *session, const void *bytes, size_t length, int *fds,
                 size_t n_fds, bool lost);

/* Handles one message that came through the session's ring at @received_ns. */
void fa_dispatch_ring(struct fa_session *session, const void *bytes, size_t length,
                      uint64_t received_ns);
