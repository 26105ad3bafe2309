/*
 * One of the waiting threads, the leader, sleeps on the socket, the others on a condition variable
 * each. Only the leader reads the socket and uses client.in. A thread that stops waiting wakes the
 * next if there is no leader.
 */
#pragma once

#include "client/client.h"
#include "client/pending.h"

/* With the mutex held, and released while waiting for waiter->ready. -EAGAIN at the deadline. */
int fa_client_await(struct fa_client *client, struct fa_client_waiter *waiter,
                    uint64_t deadline_ns);
