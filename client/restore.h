/* Registers buffers and streams with a new daemon. */
#pragma once

#include "client/client.h"

/* On the connecting thread, without the mutex. GPU memory that the daemon cannot have is marked as
 * missing. */
int fa_restore(struct fa_client *client, struct fa_connection *connection, uint64_t deadline_ns,
               struct fa_error *error);
