/*
 * Holds packets and connections that a limit refuses while objects of the same user are ending,
 * which the owner takes for gone. A held message pauses its session. Both are judged again when
 * something has ended, and for good after FA_HOLD_NS. Embedded in the server. Loop thread.
 */
#pragma once

#include "common/clock.h"
#include "common/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#define FA_HOLD_NS (5 * FA_NS_PER_SEC)

/* Held connections, and messages with uncharged descriptors. A uid has at most half. */
#define FA_HOLD_MAX 32

struct fa_server;
struct fa_session;

struct fa_hold {
	struct fa_list packets, connections; /* oldest first */
	uv_timer_t timer;
};

/* The server closes the timer. */
void fa_hold_init(struct fa_server *server);

/* The daemon stops: judges everything for the last time. */
void fa_hold_finish(struct fa_server *server);

/*
 * Holds a packet refused although objects of its user end soon, or keeps the one that is judged
 * again. If true, the caller does not answer, and @fds are -1.
 */
bool fa_hold_packet(struct fa_session *session, const void *bytes, size_t length, int *fds,
                    size_t n_fds);

void fa_hold_forget(struct fa_session *session);

/* A limit refused the connection. Consumes it, or returns false. */
bool fa_hold_connection(struct fa_server *server, int fd);
