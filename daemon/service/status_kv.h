/* What the status says of the KV pool. Loop thread. */
#pragma once

#include "daemon/session/session.h"

#include <jansson.h>

/*
 * Adds "pool", "caches" and "sequences" to @object, as far as @viewer may see them, and at
 * most so many that it does not take long. 0, or -1 if there was no memory.
 */
int fa_kv_status(json_t *object, struct fa_session *viewer);
