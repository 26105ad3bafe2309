/* Installs connections. With the client's mutex held. */
#pragma once

#include "client/client.h"

/* Consumes @connection. */
void fa_client_adopt(struct fa_client *client, struct fa_connection *connection);
/* Returns 0 once the client is connected. If need be, reconnects within @timeout_ns, with the mutex
 * released; FA_NS_NEVER: does not. */
int fa_client_reconnect(struct fa_client *client, uint64_t timeout_ns);
int fa_client_enter_connected(struct fa_client *client);
/* Without the mutex. -ENOTSUP: the daemon lacks FA_WIRE_FEATURE_* @feature; @what: its name. */
int fa_client_require(struct fa_client *client, uint64_t feature, const char *what);
/* The same for masks, and for blocks and patterns. */
int fa_client_require_masks(struct fa_client *client);
int fa_client_require_blocks(struct fa_client *client);
/* For q, k and v of e4m3. */
int fa_client_require_e4m3(struct fa_client *client);
