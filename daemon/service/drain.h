/*
 * The end of a server, from the first notice to the last handle. Loop thread.
 */
#pragma once

#include "daemon/service/server.h"

/* Lets nobody in any more, refuses new work, finishes what is in flight. Again: no effect. */
void fa_drain_start(struct fa_server *server);

/* The same, where all that is in flight ends soon, by itself. Also during a drain. */
void fa_drain_lost(struct fa_server *server);

/* Cancels what is in flight and ends at once. */
void fa_drain_force(struct fa_server *server);

/* To be called whenever something ended that a drain may wait for. Cheap. */
void fa_drain_advance(struct fa_server *server);
