/*
 * The server: owns listener, sessions, accounts, engine and device. Loop thread. It runs, drains
 * (drain.h), then stops: after the last session it closes all handles, which ends the loop. A lost
 * device starts a drain, and all requests end with -ENODEV.
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
	/* Called when a drain starts, when handles close and, before that, when the device is
	 * lost. */
	void (*draining)(void *userdata);
	void (*stopped)(void *userdata);
	void (*lost)(void *userdata);
	void *userdata;

	struct fa_error gpu_unused; /* why a GPU that is there is not used; else "" */
	struct fa_kv kv;

	struct fa_listener listener;
	struct fa_accept accept;
	struct fa_hold hold;

	unsigned int n_status_works; /* statuses that workers write */
	bool had_client;             /* one has sent Hello */
	uv_async_t reaper_async;
	uv_timer_t drain_timer;
	uv_timer_t idle_timer; /* for the first client, with exit_when_idle */
};

static inline struct fa_server *fa_server_of(struct fa_context *context)
{
	return fa_container_of(context, struct fa_server, context);
}

struct fa_server_options {
	uv_loop_t *loop;
	struct fa_config *config; /* consumed on success */
	int listen_fd;            /* -1: open the configured socket */
	bool unlink_listen_fd;    /* and its path at the end */
	bool listen_fd_kept;      /* from the fd store: an earlier fad's */
	bool exit_when_idle;
	bool filter_fds; /* a process receives clients' descriptors (fd_filter.h) */
	void (*draining)(void *userdata);
	void (*stopped)(void *userdata);
	void (*lost)(void *userdata);
	void *userdata;
	struct fa_fd_store_ops fd_store;
};

int fa_server_new(const struct fa_server_options *options, struct fa_error *error,
                  struct fa_server **ret_server);

/* After the loop has ended. Takes NULL. */
struct fa_server *fa_server_free(struct fa_server *server);

/* Consumes @config, and logs what needs a restart. */
void fa_server_reload(struct fa_server *server, struct fa_config *config);

/* Ends a drain. */
void fa_server_finish(struct fa_server *server);
