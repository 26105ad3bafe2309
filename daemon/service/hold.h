/*
 * Holds packets and connections that a limit refuses while objects of the same user are ending: the
 * owner was told that these are gone, and may count on their share. A held message pauses its
 * session; a held connection has no session yet. Both are judged again when something of any user
 * has ended, and for good after FA_HOLD_NS. Embedded in the server. Loop thread.
 */
#pragma once

#include "common/clock.h"
#include "common/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#define FA_HOLD_NS (5 * FA_NS_PER_SEC)

/* Held connections, and messages whose descriptors no charge counts. A uid has at most half. */
#define FA_HOLD_MAX 32

struct fa_server;
struct fa_session;

struct fa_hold {
	struct fa_list packets, connections; /* oldest first */
	uv_timer_t timer;
};

/* The server closes the timer. */
void fa_hold_init(struct fa_server *server);

/* Judges everything for the last time: the daemon is stopping. */
void fa_hold_finish(struct fa_server *server);

/*
 * Holds a packet that was refused although objects of its user end soon, or keeps the one that is
 * being judged again. Returns true if it is held: the caller does not answer, and @fds are -1.
 */
bool fa_hold_packet(struct fa_session *session, const void *bytes, size_t length, int *fds,
                    size_t n_fds);

void fa_hold_forget(struct fa_session *session);

/* Holds a connection that a limit refused, and consumes it. Returns false if it is not held. */
bool fa_hold_connection(struct fa_server *server, int fd);
