/* The handle of a buffer, of whatever memory. */
#pragma once

#include "client/client.h"
#include "client/registration.h"

#include <stdint.h>

/* -EINVAL: no buffer can have @bytes. */
int fa_buffer_alloc(struct fa_client *client, uint64_t bytes, struct fa_buffer **ret_buffer);
/* Changes nothing in the daemon. */
void fa_buffer_release(struct fa_buffer *buffer);
/* With the mutex held. Sends BufferFree, if the daemon has the registration. */
void fa_registration_unregister(struct fa_client *client,
                                const struct fa_client_registration *registration);
