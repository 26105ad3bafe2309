/* The end of a server: drain, flush answers, close sessions (enum fa_daemon_state). Loop thread. */
#pragma once

#include "daemon/service/server.h"

/* Accepts no connections and requests; those in flight may finish until the timeout. */
void fa_drain_start(struct fa_server *server);

/* The same with a short timeout; also shortens a drain. */
void fa_drain_lost(struct fa_server *server);

/* Cancels requests in flight and stops at once. */
void fa_drain_force(struct fa_server *server);

/* To be called when something ended that a drain may wait for. */
void fa_drain_advance(struct fa_server *server);
