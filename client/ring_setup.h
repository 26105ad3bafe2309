/*
 * Asking the daemon for a submission ring. Called with the client's mutex held.
 *
 * The first request of a connection asks for a ring, so that clients without requests (factl) do
 * not pay for one. If the daemon gives none, requests go by the socket, and a later one asks again
 * after a back-off. No request is sent while RingSetup is unanswered: earlier ones end by the
 * socket, all later ones by the ring.
 */
#pragma once

#include "client/client.h"

#include <stdbool.h>

/* True if fa_ring_setup() must precede the next request. */
bool fa_ring_setup_is_due(const struct fa_client *client);
/* Sets a ring up if due, or waits while another thread does; releases the mutex. There may be no
 * ring afterwards. */
void fa_ring_setup(struct fa_client *client);
