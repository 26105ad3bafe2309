/*
 * Asking the daemon for a submission ring. With the client's mutex.
 *
 * The first request of a connection asks for it, so that a client that sends none (factl) does not
 * pay for one. If the daemon refuses, or descriptors run out, requests go by the socket, and one of
 * them asks again after a pause that doubles. No request is sent while RingSetup is unanswered:
 * those before it are answered by the socket, all later ones of the connection go by the ring.
 */
#pragma once

#include "client/client.h"

#include <stdbool.h>

/* Returns true if fa_ring_setup() is to be called before a request is sent. */
bool fa_ring_setup_is_due(const struct fa_client *client);
/* Sets a ring up if that is due, or waits while another thread does; the mutex is released
 * meanwhile. There may be no ring afterwards. */
void fa_ring_setup(struct fa_client *client);
