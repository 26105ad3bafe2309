/* The daemon's state as JSON, for factl and tests. Loop thread, if nothing else is said. */
#pragma once

#include "daemon/session/session.h"
#include "daemon/session/submission_ring.h"

#include <jansson.h>
#include <stddef.h>

#define FA_STATUS_LISTED_MAX 128

/* What a session has, copied by the loop thread. */
struct fa_status_row {
	uint64_t id;
	char name[FA_WIRE_NAME_BYTES_MAX + 1];
	char cgroup[FA_CGROUP_BYTES];
	pid_t pid;
	uid_t uid;
	enum fa_session_state state;
	bool timeline, has_ring;
	struct fa_ring_status ring;
	uint64_t buffers, buffer_bytes, device_buffers;
	uint64_t streams, requests, steps, prefixes;
	uint64_t out_messages, out_bytes, messages, errors;
	struct fa_usage usage;
};

struct fa_status {
	json_t *object; /* all but the sessions */
	unsigned int n_rows, max_rows;
	struct fa_status_row rows[];
};

/* Collects what @viewer may see: its tenant's part, or all if it is privileged. Lists the viewer
 * and the oldest, at most FA_STATUS_LISTED_MAX. -ENOMEM. */
int fa_status_new(struct fa_session *viewer, struct fa_status **ret_status);
/* Takes NULL. Any thread. */
struct fa_status *fa_status_free(struct fa_status *status);

/* Writes into a sealed memfd, once. Any thread. */
int fa_status_write(struct fa_status *status, int *ret_fd, size_t *ret_bytes);

/* Adds "cgroup", escaped so that distinct ones stay distinct. -1: no memory. */
int fa_status_set_cgroup(json_t *object, const char *cgroup);
