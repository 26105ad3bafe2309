/* The daemon's state as JSON, for factl and tests. Loop thread. */
#pragma once

#include "daemon/session/session.h"

#include <jansson.h>
#include <stddef.h>

#define FA_STATUS_LISTED_MAX 128

/*
 * Writes the status into a sealed memfd: all of it if @viewer is privileged, otherwise its tenant
 * and that tenant's sessions. Lists at most FA_STATUS_LISTED_MAX sessions and tenants, the viewer's
 * and the oldest, with their total number: other clients wait while it is written.
 */
int fa_status_new(struct fa_session *viewer, int *ret_fd, size_t *ret_bytes);

/* Adds "cgroup" to @object, escaped so that distinct cgroups stay distinct. -1: no memory. */
int fa_status_set_cgroup(json_t *object, const char *cgroup);
