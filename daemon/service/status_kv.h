/* Adds the KV pool to the daemon's status. Loop thread. */
#pragma once

#include "daemon/session/session.h"

#include <jansson.h>

/* Adds "pool", "caches" and "sequences" that @viewer may see, in bounded number. -1: no memory. */
int fa_kv_status(json_t *object, struct fa_session *viewer);
