/* Makes the view of a message from the caller's tensor. */
#pragma once

#include "client/faclient.h"
#include "schema/wire.h"

#include <stdint.h>

struct fa_client_registration;

/* Checks what needs no daemon (buffer, dtype, rank, bounds). -EINVAL, for field @name. */
int fa_tensor_view(const char *name, struct fa_client *client, const struct fa_tensor *tensor,
                   uint32_t rank, struct fa_wire_view *ret_view,
                   const struct fa_client_registration **ret_registration);

/* With the mutex held, connected. -ESTALE: the daemon has lost the buffer. */
int fa_tensor_check(const char *name, const struct fa_client_registration *registration);
