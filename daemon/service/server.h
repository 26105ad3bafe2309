/*
 * The server: owns the listener, the sessions, the accounts, the engine and the
 * device, and ends them in the right order. Loop thread only.
 *
 * It runs; then it drains: nobody new is let in, new work is refused, and what is
 * in flight may finish until the deadline; then it stops: sessions are closed, and
 * when the last has gone, so are all handles of the loop, which thereby ends. A lost
 * device makes it drain: all that is in flight, or comes, ends with -ENODEV.
 */
#pragma once

#include "common/cleanup.h"
#include "daemon/kv/store.h"
#include "daemon/service/listener.h"
#include "daemon/session/context.h"

#include <stdbool.h>
#include <uv.h>

struct fa_server {
	struct fa_context context; /* what sessions see */
	/* Called when draining starts, when all has ended and loop handles close, and when
	 * the device is lost, which precedes those. */
	void (*draining)(void *userdata);
	void (*stopped)(void *userdata);
	void (*lost)(void *userdata);
	void *userdata;

	struct fa_error gpu_unused; /* why, if one seems to be there; else "" */
	struct fa_kv kv;

	struct fa_listener listener;
	uv_poll_t accept_poll;
	bool accepting;          /* accept_poll is started */
	uv_timer_t accept_timer; /* goes on accepting after a shortage */
	int reserve_fd;          /* given up to turn a connection away */
	bool reaper_full;        /* too many that were turned away are not closed */

	bool had_client;        /* somebody said Hello once */
	uv_timer_t hello_timer; /* runs while there are sessions without Hello */
	uv_async_t reaper_async;
	uv_timer_t drain_timer;
	uv_timer_t idle_timer; /* exit_when_idle: nobody came */

	/* Since the start. */
	uint64_t n_connections, n_refused;
};

static inline struct fa_server *fa_server_of(struct fa_context *context)
{
	return fa_container_of(context, struct fa_server, context);
}

struct fa_server_options {
	uv_loop_t *loop;
	struct fa_config *config; /* consumed if it succeeds */
	int listen_fd;            /* -1: make a socket as configured */
	bool unlink_listen_fd;    /* its path is to be removed at the end */
	bool listen_fd_kept;      /* an earlier process of ours made it */
	bool exit_when_idle;
	void (*draining)(void *userdata);
	void (*stopped)(void *userdata);
	void (*lost)(void *userdata); /* NULL: nobody wants to know */
	void *userdata;
	struct fa_fd_store_ops fd_store;
};

/* Opens the device, starts the engine and accepts connections. */
int fa_server_new(const struct fa_server_options *options, struct fa_error *error,
                  struct fa_server **ret_server);

/* After the loop has ended. Takes NULL. */
struct fa_server *fa_server_free(struct fa_server *server);

/* Takes limits, log and drain timeout from @config (consumed); says in the log what
 * could not be changed. */
void fa_server_reload(struct fa_server *server, struct fa_config *config);

/* Called by a drain: nobody new is let in; all has ended, and is taken apart. */
void fa_server_close_listener(struct fa_server *server);
void fa_server_finish(struct fa_server *server);

/* Runs the timer of those that did not say Hello, if there are any. */
void fa_server_arm_hello_timer(struct fa_server *server);

/* Ends, if it is to when idle and is: nobody is there, nor may come back. */
void fa_server_exit_if_idle(struct fa_server *server);
