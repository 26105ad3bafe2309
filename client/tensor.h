/* From the caller's tensor to the view that travels. */
#pragma once

#include "client/internal.h"

/*
 * Checks @tensor as far as this side can (whose buffer, dtype, rank, bounds) and
 * fills @ret_view. @name is the field's, for the sentence. -EINVAL.
 */
int fa_tensor_view(const char *name, struct fa_client *client, const struct fa_tensor *tensor,
                   uint32_t rank, struct fa_wire_view *ret_view);

/* With the mutex, connected: whether the daemon that is connected to has the buffer. */
int fa_tensor_check(const char *name, const struct fa_tensor *tensor);
