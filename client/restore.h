/* Registering a client's buffers and streams with a new connection. */
#pragma once

#include "client/client.h"

/* Without the mutex, by the connecting thread. Many registrations are in flight at once. GPU memory
 * that the daemon cannot have is marked as missing. */
int fa_restore(struct fa_client *client, struct fa_connection *connection, uint64_t deadline_ns,
               struct fa_error *error);
