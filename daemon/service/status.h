/* The daemon's state as JSON, for factl and tests. Loop thread. */
#pragma once

#include "daemon/session/session.h"

#include <jansson.h>
#include <stddef.h>

#define FA_STATUS_LISTED_MAX 128

/* Writes what @viewer may see into a sealed memfd: its tenant's part, or everything if it is
 * privileged. Lists the viewer and the oldest, at most FA_STATUS_LISTED_MAX, as other clients
 * wait. */
int fa_status_new(struct fa_session *viewer, int *ret_fd, size_t *ret_bytes);

/* Adds "cgroup", escaped so that distinct cgroups stay distinct. Returns -1 without memory. */
int fa_status_set_cgroup(json_t *object, const char *cgroup);
