/* Ends a server: drains, flushes answers, closes sessions (enum fa_daemon_state). Loop thread. */
#pragma once

#include "daemon/service/server.h"

/* Refuses connections and requests; those in flight have until the timeout. */
void fa_drain_start(struct fa_server *server);

/* With a short timeout, also for a drain under way. */
void fa_drain_lost(struct fa_server *server);

void fa_drain_force(struct fa_server *server);

/* Something ended that a drain may wait for. */
void fa_drain_advance(struct fa_server *server);
