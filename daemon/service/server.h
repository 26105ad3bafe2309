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

#include "common/error.h"
#include "common/list.h"
#include "daemon/account/config.h"
#include "daemon/account/fd_reaper.h"
#include "daemon/account/tenant.h"
#include "daemon/base/block_cache.h"
#include "daemon/base/loop_spin.h"
#include "daemon/engine/engine.h"
#include "daemon/kv/store.h"
#include "daemon/memory/importer.h"
#include "daemon/service/listener.h"
#include "daemon/session/submission_ring.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <uv.h>

struct fa_session;

enum fa_server_state {
	FA_SERVER_RUNNING,
	FA_SERVER_DRAINING, /* until work has ended */
	FA_SERVER_FLUSHING, /* until answers have been sent */
	FA_SERVER_STOPPING, /* until sessions have gone */
	FA_SERVER_STOPPED,
};

struct fa_server {
	uv_loop_t *loop;
	struct fa_config config; /* replaced by a reload */
	bool exit_when_idle;
	/* Called when draining starts, when all has ended and loop handles close, and when
	 * the device is lost, which precedes those. */
	void (*draining)(void *userdata);
	void (*stopped)(void *userdata);
	void (*lost)(void *userdata);
	void *userdata;

	enum fa_server_state state;
	uid_t uid;
	uint64_t generation;
	uint64_t started_ns;

	struct fa_device_info info;
	struct fa_error gpu_unused; /* why, if one seems to be there; else "" */
	const struct fa_device_ops *ops;
	struct fa_device *device;
	struct fa_engine *engine;
	bool is_lost; /* the device; another process may get it back */
	struct fa_error lost_reason;
	struct fa_fd_reaper *reaper;
	struct fa_importer importer;
	struct fa_tenants tenants;
	struct fa_kv kv;

	struct fa_listener listener;
	uv_poll_t accept_poll;
	bool accepting;          /* accept_poll is started */
	uv_timer_t accept_timer; /* goes on accepting after a shortage */
	int spare_fd;            /* given up to turn a connection away */
	uint64_t shortage_ns;    /* when the log said last that there are no descriptors */
	bool clogged;            /* too many that were turned away are not closed */

	/* Sessions are not looked through before, or so many descriptors later (session/session.c). */
	uint64_t settle_again_ns, settle_charged;

	struct fa_list sessions;
	struct fa_list
		early; /* of them, those of which the device may tell an end (session/device_completion.h) */
	unsigned int n_sessions; /* not freed yet */
	uint64_t last_session;
	bool had_client;          /* somebody said Hello once */
	struct fa_list uncharged; /* sessions without Hello, oldest first */
	uv_timer_t hello_timer;   /* runs while there are any */

	uv_async_t engine_async;
	/* The loop sleeps, or is about to look once more before it does: only then it is told
	 * that the engine has something for it. */
	_Atomic uint32_t asleep;
	uv_async_t closer_async;
	struct fa_loop_spin spin;
	struct fa_rings rings;
	unsigned int n_requests;     /* in flight, of all sessions */
	struct fa_block_cache works; /* what these take */
	uv_timer_t drain_timer;
	uv_timer_t idle_timer; /* exit_when_idle: nobody came */

	/* Since the start. */
	uint64_t n_connections, n_refused;
	uint64_t n_timelines;          /* that are kept beyond this process */
	struct fa_list timelines_late; /* of them, those that the fd store is to let go of */

	/* The message that is being handled: private, aligned. */
	_Alignas(8) unsigned char packet[FA_WIRE_BYTES_MAX];
};

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

/* Answers all that the engine has finished so far, and lets go of it. A client may
 * have seen that in its page before this thread did. */
void fa_server_take_finished(struct fa_server *server);

/* The same and everything else that the engine has news of, but not without end. Returns
 * whether there was anything. */
bool fa_server_look_after_engine(struct fa_server *server);

/* The loop polls the engine no more: from now on it is told. */
void fa_server_rest(struct fa_server *server);

/* Called by a drain: nobody new is let in; all has ended, and is taken apart. */
void fa_server_close_listener(struct fa_server *server);
void fa_server_finish(struct fa_server *server);

/* Runs the timer of those that did not say Hello, if there are any. */
void fa_server_watch_strangers(struct fa_server *server);

/* There is no descriptor left: the log says so, now and then. */
void fa_server_note_shortage(struct fa_server *server);
/* The answer to somebody who cannot be let in for @code: if it is that, one that has it come
 * again. Else @code and its sentence stay. */
int fa_server_explain_shortage(struct fa_server *server, int code, struct fa_error *error);

/* Called by sessions: one was made, one was freed, one said Hello. */
void fa_server_session_made(struct fa_server *server);
void fa_server_session_gone(struct fa_server *server);
void fa_server_session_ready(struct fa_server *server, struct fa_session *session);

/* Ends, if it is to when idle and is: nobody is there, nor may come back. */
void fa_server_look_idle(struct fa_server *server);
