/* The daemon's state as JSON, for factl and tests. Loop thread. */
#pragma once

#include "daemon/session/session.h"

#include <jansson.h>
#include <stddef.h>

#define FA_STATUS_LISTED_MAX 128

/*
 * Writes what @viewer may see into a sealed memfd: all of it if it is privileged,
 * otherwise its own tenant and that one's sessions. It takes less than a millisecond,
 * as others wait for it: of more than FA_STATUS_LISTED_MAX sessions or tenants, its own
 * and the oldest are listed, and how many there are is said.
 */
int fa_status_new(struct fa_session *viewer, int *ret_fd, size_t *ret_bytes);

/* Adds "cgroup" to @object, so that no two become one: tenants are told apart by it. 0, or -1 if
 * there was no memory. */
int fa_status_set_cgroup(json_t *object, const char *cgroup);
