/* The KV pool's part of the status. Loop thread. */
#pragma once

#include "daemon/session/session.h"

#include <jansson.h>

/* Adds "pool", "caches" and "sequences" that @viewer may see, in bounded number. -1: no memory. */
int fa_kv_status(json_t *object, struct fa_session *viewer);
