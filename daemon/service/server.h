/*
 * The server: owns the listener, sessions, accounts, engine and device. Loop thread.
 *
 * It runs, drains (drain.h), then stops: after the last session all handles are closed, which ends
 * the loop. A lost device starts a drain; all requests end with -ENODEV.
 */
#pragma once

#include "common/cleanup.h"
#include "daemon/kv/store.h"
#include "daemon/service/accept.h"
#include "daemon/service/hold.h"
#include "daemon/service/listener.h"
#include "daemon/session/context.h"

#include <stdbool.h>
#include <uv.h>

struct fa_server {
	struct fa_context context;
	/* Callbacks: when draining starts, when loop handles close and, before that, when the
	 * device is lost. */
	void (*draining)(void *userdata);
	void (*stopped)(void *userdata);
	void (*lost)(void *userdata);
	void *userdata;

	struct fa_error gpu_unused; /* why an apparent GPU is not used; else "" */
	struct fa_kv kv;

	struct fa_listener listener;
	struct fa_accept accept;
	struct fa_hold hold;

	unsigned int n_status_works; /* statuses that workers write */
	bool had_client;             /* some client has sent Hello */
	uv_async_t reaper_async;
	uv_timer_t drain_timer;
	uv_timer_t idle_timer; /* waits for the first client, with exit_when_idle */
};

static inline struct fa_server *fa_server_of(struct fa_context *context)
{
	return fa_container_of(context, struct fa_server, context);
}

struct fa_server_options {
	uv_loop_t *loop;
	struct fa_config *config; /* the server owns it on success */
	int listen_fd;            /* -1: open the configured socket */
	bool unlink_listen_fd;    /* remove its path at the end */
	bool listen_fd_kept;      /* the socket is from the fd store: an earlier fad opened it */
	bool exit_when_idle;
	bool filter_fds; /* receive clients' descriptors in a process of its own */
	void (*draining)(void *userdata);
	void (*stopped)(void *userdata);
	void (*lost)(void *userdata);
	void *userdata;
	struct fa_fd_store_ops fd_store;
};

int fa_server_new(const struct fa_server_options *options, struct fa_error *error,
                  struct fa_server **ret_server);

/* Call after the loop has ended. Takes NULL. */
struct fa_server *fa_server_free(struct fa_server *server);

/* Applies @config, which the server then owns, and logs what needs a restart. */
void fa_server_reload(struct fa_server *server, struct fa_config *config);

/* Ends a drain: frees everything and closes the handles. */
void fa_server_finish(struct fa_server *server);
