/*
 * The daemon's KV pool: its state (pool/pool.h) with the device's memory under it. It grows by
 * chunks when steps need them, up to the configured size, and gives back those that were
 * empty for a while. Loop thread.
 *
 * Without a pool, because the device has none or it was not wanted, everything else is
 * served.
 */
#pragma once

#include "common/clock.h"
#include "common/error.h"
#include "common/list.h"
#include "daemon/kv/persist.h"
#include "daemon/persist/session_store.h"
#include "daemon/pool/cache.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/sequence.h"
#include "daemon/pool/step.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_context;
struct fa_session;

/* What a session had waits for it for grace_s, once another daemon serves; and as long each time
 * that it has come back and gone before it asked for any of it, until it was away for so many
 * times that. */
#define FA_KV_GRACE_ALL 10u

struct fa_kv {
	struct fa_context *context;
	struct fa_kv_kept kept[FA_KV_KEEP_N];
	uint32_t n_stored; /* of those, that the fd store has */
	uint32_t n_late;   /* ... and that it is to be told of */
	struct fa_session_store session_store;
	uint64_t quarantine_ns; /* until when what died may still write to pages; 0: it may not */
	struct fa_pool *pool;   /* NULL: there is none */
	struct fa_error reason; /* then why */
	void *base;             /* where the device has it */
	uint32_t chunks_max;    /* it grows up to that */
	uint32_t grow_failed;   /* chunks there were when the device had no more memory */
	uint64_t grow_again_ns; /* ... and when it is asked again */
	bool lost;              /* it did not grow as the device is lost */
	char remedy[160];       /* of a pool that is exhausted */
	uint64_t last_step;     /* number */
	uv_timer_t timer;
};

/* Takes back the pool that an earlier daemon had, or makes one as it is configured, or says
 * in the log why there is none. 0; or -EAGAIN, with a sentence: the pool that was kept cannot be
 * taken back now, and this process is to end, so that another one tries. */
int fa_kv_open(struct fa_context *context, struct fa_error *error);

/* The configuration says another size: @chunk_bytes is what it says of chunks. The pool may
 * have as many chunks from now on; those that are too many go when they are empty. */
void fa_kv_resize(struct fa_context *context, uint64_t chunk_bytes);

struct fa_session_store_device;
void fa_kv_device(const struct fa_context *context, struct fa_session_store_device *ret_device);

/* Its handle is closed too. Nothing is in flight. */
void fa_kv_close(struct fa_context *context);

/* Whether there is a pool, and who asks. -ENOTSUP, -ESHUTDOWN, and what
 * fa_pool_tenant_get() says. */
int fa_kv_actor(struct fa_session *session, const struct fa_actor **ret_actor,
                struct fa_error *error);

/* The same, for what an administrator may do with what is not his: find and remove it. */
int fa_kv_actor_admin(struct fa_session *session, struct fa_actor *ret_actor,
                      struct fa_error *error);

/* There is something to look after from time to time: a cache, and all that needs one. */
void fa_kv_wake(struct fa_kv *kv);

/* Pages that what died may have written to can be used again, if it is time. */
void fa_kv_quarantine_end(struct fa_kv *kv);

/* CLOCK_BOOTTIME, by which objects have their time to live. */
uint64_t fa_kv_now_ns(void);

/* It says Hello, with a secret of its own. Returns whether it is the session that had the
 * secret @resume (NULL: none) before the daemon died, whose number and secret it has then. If
 * it closes before it asks for anything of the pool, that session may still come back. */
bool fa_kv_session_hello(struct fa_session *session, const struct fa_wire_secret *resume);

/* The session closes: nothing new is asked for; steps end when their requests have. */
void fa_kv_session_close(struct fa_session *session);

/* Nothing of it is in flight: what was its own goes, unless the daemon itself ends. */
void fa_kv_session_end(struct fa_session *session);
