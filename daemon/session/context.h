/*
 * What sessions and requests need of the daemon; part of the server. Loop thread, except `asleep`.
 * session/ includes nothing above it: it calls the server, KV and handlers through hooks.
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
#include "daemon/memory/importer.h"
#include "daemon/persist/fd_store.h"
#include "daemon/session/submission_ring.h"
#include "daemon/session/turns.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct fa_context;
struct fa_kv;
struct fa_session;

enum fa_daemon_state {
	FA_DAEMON_RUNNING,
	FA_DAEMON_DRAINING, /* until no request is in flight */
	FA_DAEMON_FLUSHING, /* until all answers are sent */
	FA_DAEMON_STOPPING, /* until all sessions are freed */
	FA_DAEMON_STOPPED,
};

struct fa_context_hooks {
	/* fa_dispatch() */
	bool (*packet)(struct fa_session *session, const void *bytes, size_t length, int *fds,
	               size_t n_fds, bool fds_lost);
	/* fa_dispatch_ring() */
	void (*ring_entry)(struct fa_session *session, const void *bytes, size_t length,
	                   uint64_t received_ns);

	void (*session_ready)(struct fa_session *session);
	/* Its streams are cancelled; buffers are still registered. */
	void (*session_closing)(struct fa_session *session);
	/* Nothing is in flight. The session is freed next. */
	void (*session_ended)(struct fa_session *session);

	void (*session_freed)(struct fa_context *context);
	/* Something ended that a drain may wait for. */
	void (*drain_progress)(struct fa_context *context);
	/* The daemon may be idle (exit_when_idle). */
	void (*idle)(struct fa_context *context);

	void (*device_lost)(struct fa_context *context);
};

struct fa_context {
	const struct fa_context_hooks *hooks;
	uv_loop_t *loop;
	struct fa_config config;
	bool exit_when_idle;

	enum fa_daemon_state state;
	uid_t uid;
	uid_t observer_uid; /* (uid_t)-1: nobody */
	uint64_t generation;
	uint64_t started_ns;

	struct fa_device_info info;
	const struct fa_device_ops *ops;
	struct fa_device *device;
	struct fa_engine *engine;
	bool is_lost;
	struct fa_error lost_reason;
	struct fa_fd_reaper *reaper;
	struct fa_importer importer;
	struct fa_tenants tenants;
	struct fa_fd_store_ops fd_store;
	struct fa_kv *kv;

	struct fa_list sessions;
	struct fa_list device_sessions; /* with bits in device_streams */
	struct fa_list hello_pending;   /* sessions before Hello, oldest first */
	struct fa_list reapable;        /* accounts to reap (completions.h) */
	unsigned int n_sessions;
	uint64_t last_session;
	uint64_t sent_check_ns;    /* next check (outbox.c) */
	uint64_t sent_charged;     /* since the last check (outbox.c) */
	uint64_t no_fds_warned_ns; /* last warning; 0: never */

	/* 1: the engine must wake the loop */
	_Atomic uint32_t asleep;
	uv_async_t engine_async;
	struct fa_loop_spin spin;
	struct fa_rings rings;
	struct fa_turns turns;
	uint64_t reaped_ns;      /* in fa_completions_reap_all() so far */
	unsigned int n_requests; /* in flight, of all sessions */
	struct fa_block_cache request_cache;
	uint64_t n_timelines;           /* in the fd store */
	struct fa_list timelines_ended; /* still in the fd store */

	_Alignas(8) unsigned char packet[FA_WIRE_BYTES_MAX];
};

static inline void fa_context_drain_progress(struct fa_context *context)
{
	if (context->state != FA_DAEMON_RUNNING)
		context->hooks->drain_progress(context);
}

/* Returns true even before is_lost is set. */
bool fa_context_device_lost(const struct fa_context *context);

/* Warns at most once in ten seconds. */
void fa_context_warn_no_fds(struct fa_context *context);

/* -EMFILE and -ENFILE become -EDQUOT with a sentence: the client tries again. */
#define FA_CONTEXT_NO_FDS "the daemon has no descriptors left"
int fa_context_explain_no_fds(struct fa_context *context, int code, struct fa_error *error);
