/*
 * Accepts connections and closes those that send no Hello in time. Embedded in the server. Loop
 * thread. Without descriptors a reserved one is closed, to accept and reject a connection that
 * would keep waking the loop.
 */
#pragma once

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_server;

struct fa_accept {
	uv_poll_t poll;
	bool active;      /* poll is started */
	uv_timer_t timer; /* ends a pause */
	int reserve_fd;
	bool reaper_full;       /* too many rejected ones await their close */
	uv_timer_t hello_timer; /* while sessions lack a Hello */

	uint64_t n_connections, n_rejected; /* since the start */
};

/* The server closes the timers. */
void fa_accept_init(struct fa_server *server);

int fa_accept_start(struct fa_server *server, struct fa_error *error);

/* Also closes connections in the backlog. */
void fa_accept_stop(struct fa_server *server);

void fa_accept_poll(struct fa_server *server);

/* Judges a held connection again, and rejects it if it does not fit the @last time. Returns true if
 * it was consumed. */
bool fa_accept_again(struct fa_server *server, int fd, bool last);

/* Call it when a descriptor was closed. */
void fa_accept_refill_reserve(struct fa_server *server);

/* The oldest session without Hello has changed. */
void fa_accept_update_hello_timer(struct fa_server *server);
