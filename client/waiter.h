/*
 * Waiting for what the daemon sends: leader and followers. One waiting thread, the leader, sleeps on
 * the socket; the others sleep on a condition variable each. While there is a leader no other thread
 * reads the socket or uses client.in. A thread that stops waiting while there is no leader wakes
 * another, which leads from then on.
 */
#pragma once

#include "client/client.h"
#include "client/pending.h"

/* With the mutex, which is released meanwhile. Waits until waiter->ready; -EAGAIN at the
 * deadline. */
int fa_client_await(struct fa_client *client, struct fa_waiter *waiter, uint64_t deadline_ns);
