/* Making a connection the client's, at first and again. With the client's mutex. */
#pragma once

#include "client/client.h"

/* Makes @connection (consumed) the client's. */
void fa_client_adopt(struct fa_client *client, struct fa_connection *connection);
/* Returns 0 if the client is connected; reconnects within @timeout_ns if it is not, and releases the
 * mutex meanwhile. FA_NS_NEVER: does not reconnect. */
int fa_client_reconnect(struct fa_client *client, uint64_t timeout_ns);
/* Enters the client, and reconnects if the connection is lost. */
int fa_client_enter_connected(struct fa_client *client);
