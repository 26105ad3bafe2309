/* Handing a request to the daemon: by the ring, else by the socket. */
#pragma once

#include "client/client.h"

/* With the mutex held; releases it while there is no room. Sends the message with the next value of
 * stream @id, stored at @value; first sets a ring up if that is due. -ECONNRESET: the connection is
 * lost. */
int fa_request_post(struct fa_client *client, struct fa_wire_message *message, uint32_t id,
                    uint64_t *value);
