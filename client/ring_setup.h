/*
 * Asking the daemon for a submission ring. With the client's mutex.
 *
 * The first request of a connection asks, so that clients without requests (factl) do not pay. If
 * there is none, requests go by the socket, and one asks again after a back-off. No request is
 * sent while RingSetup is unanswered: earlier ones end by the socket, all later ones by the ring.
 */
#pragma once

#include "client/client.h"

#include <stdbool.h>

/* Returns true if fa_ring_setup() must precede the next request. */
bool fa_ring_setup_is_due(const struct fa_client *client);
/* Sets a ring up if due, or waits while another thread does; releases the mutex. There may be no
 * ring afterwards. */
void fa_ring_setup(struct fa_client *client);
