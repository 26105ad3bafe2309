/*
 * What sessions and their requests need of the daemon around them: the device, the engine,
 * the accounts, the limits, and the list of all sessions. The server (service/server.h)
 * contains it, and adds what only the server needs: the listener, accepting, timers.
 *
 * Calls from a session up to the server, to KV and to the handlers go through the hooks, so
 * that session/ includes nothing above it. Loop thread only, but for `asleep`.
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
	FA_DAEMON_DRAINING, /* until requests in flight have ended */
	FA_DAEMON_FLUSHING, /* until answers have been sent */
	FA_DAEMON_STOPPING, /* until sessions have been freed */
	FA_DAEMON_STOPPED,
};

struct fa_context_hooks {
	/* A packet of the session was read. See fa_dispatch(). */
	bool (*packet)(struct fa_session *session, const void *bytes, size_t length, int *fds,
	               size_t n_fds, bool lost);
	/* An entry was copied out of the session's submission ring. See fa_dispatch_ring(). */
	void (*ring_entry)(struct fa_session *session, const void *bytes, size_t length,
	                   uint64_t received_ns);
	/* Hello was accepted. */
	void (*session_ready)(struct fa_session *session);
	/* The session closes: its streams are cancelled, its buffers are still registered. */
	void (*session_closing)(struct fa_session *session);
	/* Nothing of the session is in flight. It is freed next. */
	void (*session_ended)(struct fa_session *session);
	/* A session was freed. */
	void (*session_freed)(struct fa_context *context);
	/* Something ended that a drain may wait for. Called while the daemon drains. */
	void (*drain_progress)(struct fa_context *context);
	/* Nothing keeps a daemon alive that exits when idle; it may be idle now. */
	void (*idle)(struct fa_context *context);
	/* The device is lost; context.lost_reason says why. */
	void (*device_lost)(struct fa_context *context);
};

struct fa_context {
	const struct fa_context_hooks *hooks;
	uv_loop_t *loop;
	struct fa_config config; /* replaced by a reload */
	bool exit_when_idle;

	enum fa_daemon_state state;
	uid_t uid;
	uint64_t generation;
	uint64_t started_ns;

	struct fa_device_info info;
	const struct fa_device_ops *ops;
	struct fa_device *device;
	struct fa_engine *engine;
	bool is_lost; /* the device; the next process may get it back */
	struct fa_error lost_reason;
	struct fa_fd_reaper *reaper;
	struct fa_importer importer;
	struct fa_tenants tenants;
	struct fa_fd_store_ops fd_store;
	struct fa_kv *kv;

	struct fa_list sessions;
	struct fa_list device_sessions; /* of them, those of which the device may tell an end */
	struct fa_list hello_pending;   /* sessions without Hello, oldest first */
	unsigned int n_sessions;        /* not freed yet */
	uint64_t last_session;
	/* Sessions are not looked through before, or so many descriptors later (session.c). */
	uint64_t sent_check_ns, sent_charged;
	uint64_t no_fds_warned_ns; /* when the log last said that descriptors ran out */

	/* The loop sleeps, or is about to check once more before it sleeps. Only then the engine
	 * has to wake it. */
	_Atomic uint32_t asleep;
	uv_async_t engine_async;
	struct fa_loop_spin spin;
	struct fa_rings rings;
	unsigned int n_requests;             /* in flight, of all sessions */
	struct fa_block_cache request_cache; /* memory for them */
	uint64_t n_timelines;                /* whose descriptors the fd store has */
	struct fa_list timelines_ended;      /* of them, those to be removed from the fd store */

	/* The message that is being handled: private, aligned. */
	_Alignas(8) unsigned char packet[FA_WIRE_BYTES_MAX];
};

/* To be called whenever something ended that a drain may wait for. */
static inline void fa_context_drain_progress(struct fa_context *context)
{
	if (context->state != FA_DAEMON_RUNNING)
		context->hooks->drain_progress(context);
}

/* Returns true if the device was lost, also if the loop has not been told yet. */
bool fa_context_device_lost(const struct fa_context *context);

/* No descriptor is left: says so in the log, at most once in ten seconds. */
void fa_context_warn_no_fds(struct fa_context *context);

/*
 * The answer to a client that cannot be served because of @code. If no descriptor is left
 * that is -EDQUOT with a sentence, so that the client tries again; otherwise @code and @error
 * stay as they are.
 */
#define FA_CONTEXT_NO_FDS "the daemon has no descriptors left"
int fa_context_explain_no_fds(struct fa_context *context, int code, struct fa_error *error);
