/* Passes messages to their handlers by one table. Loop thread. */
#pragma once

#include "daemon/session/call.h"

#include <stdbool.h>
#include <stddef.h>

/* Handles a packet, and sets the entries of @fds that it keeps to -1. @fds_lost: some were lost;
 * messages that need any fail with -EMFILE. Returns true to read on at once: clients do not wait
 * for the answer. */
bool fa_dispatch(struct fa_session *session, const void *bytes, size_t length, int *fds,
                 size_t n_fds, bool fds_lost);

/* For a held packet (hold.h). Returns true if it stays held. */
bool fa_dispatch_held(struct fa_session *session, const void *bytes, size_t length, int *fds,
                      size_t n_fds);

void fa_dispatch_ring(struct fa_session *session, const void *bytes, size_t length,
                      uint64_t received_ns);
