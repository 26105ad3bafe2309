/*
 * Ends a session with the process that connected, though children may have the socket. What it sent
 * before is still handled. Loop thread.
 */
#pragma once

#include "common/error.h"
#include "daemon/account/tenant.h"

#include <uv.h>

struct fa_session;

struct fa_peer_watch {
	int pidfd; /* -1: unknown; the session ends with its socket */
	struct fa_charge charge;
	uv_poll_t poll;
};

/* -EDQUOT and others, with a sentence. */
int fa_peer_watch_start(struct fa_session *session, int socket, struct fa_error *error);
/* Call it before the session's socket is closed, even if nothing is watched. */
void fa_peer_watch_stop(struct fa_session *session);
