/* What happens when the connection is lost. With the client's mutex held. */
#pragma once

#include "client/client.h"

/* All waits end with @code (-ECONNRESET, or -EPROTO if the protocol was broken). Does nothing if
 * the connection is lost already. */
void fa_client_lose(struct fa_client *client, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Sets the thread's sentence to the reason, and returns its code. */
int fa_client_lost_error(struct fa_client *client);
