/*
 * The end of a server: drain until no request is in flight, flush answers, stop sessions. Loop
 * thread.
 */
#pragma once

#include "daemon/service/server.h"

/* Closes the listener, refuses new requests, and lets those in flight finish until the drain timeout.
 * No effect if it was called before. */
void fa_drain_start(struct fa_server *server);

/* The same for a lost device, with a short timeout. Also shortens a drain. */
void fa_drain_lost(struct fa_server *server);

/* Cancels requests in flight and stops at once. */
void fa_drain_force(struct fa_server *server);

/* To be called when something ended that a drain may wait for. Cheap. */
void fa_drain_advance(struct fa_server *server);
