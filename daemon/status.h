/* The daemon's state as JSON, for factl and tests. Loop thread. */
#pragma once

#include "daemon/session.h"

#include <stddef.h>

/*
 * Writes what @viewer may see into a sealed memfd: all of it if it is privileged,
 * otherwise its own tenant and that one's sessions.
 */
int fa_status_new(struct fa_session *viewer, int *ret_fd, size_t *ret_bytes);
