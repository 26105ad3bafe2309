/*
 * Asks for a submission ring, with a connection's first request. With the client's mutex held.
 * Without a ring requests go by the socket, and a later one asks again after a back-off. No request
 * is sent while RingSetup is unanswered.
 */
#pragma once

#include "client/client.h"

#include <stdbool.h>

/* True: a ring must be set up before the next request. */
bool fa_ring_setup_is_due(const struct fa_client *client);
/* Releases the mutex; waits while another thread does it. There may be no ring afterwards. */
void fa_ring_setup(struct fa_client *client);
