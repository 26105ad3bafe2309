/*
 * The submission rings of sessions (common/ring.h): made when a client asks, served
 * fairly, and slept on. Loop thread only.
 *
 * What comes through a ring is copied out, then verified, then acted upon, by the same
 * handlers as packets. Rings that had something lately are polled, each for a few entries
 * in its turn, while the loop looks after its descriptors now and then only; when nothing
 * has come for a while (spin_us) a ring is left to its doorbell, and without rings to
 * poll the loop sleeps. One whose client asks more slowly than that, time after time, is
 * not polled for some requests. A session that is paused has its ring left alone; so the
 * ring fills, and its client waits.
 *
 * A packet is handled after all that lay in the session's ring when it was received:
 * what a client says first comes first. The other way round a client has to wait for the
 * answer to its packet.
 *
 * Doorbells are watched edge-triggered and never read: the client holds the same
 * descriptor and could make a read wait.
 */
#pragma once

#include "common/error.h"
#include "common/list.h"
#include "daemon/engine/completion_records.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_context;
struct fa_session;
struct fa_session_ring;

struct fa_rings {
	struct fa_context *context;
	uv_idle_t idle;     /* active while there are busy rings */
	uv_poll_t poll;     /* of bells */
	int doorbell_epoll; /* an epoll descriptor for all doorbells */
	struct fa_list polled;
	unsigned int n_polled;
	uint64_t n_submitted;             /* to the engine */
	uint64_t n_requests, n_doorbells; /* of all rings, since the start */
	unsigned int n_rings;
	bool polls;  /* on a single processor no client can put anything meanwhile */
	bool yields; /* the thread waited for may need this processor */

	/* The entry that is being handled. */
	_Alignas(8) unsigned char entry[FA_WIRE_BYTES_MAX];
};

int fa_rings_init(struct fa_rings *rings, struct fa_context *context);
/* When its handles are closing. */
void fa_rings_deinit(struct fa_rings *rings);
/* The loop looks for entries, and for what the engine has, without sleeping. */
bool fa_rings_are_polled(const struct fa_rings *rings);

/* RingSetup: answers it, or returns a negative errno with a sentence. */
int fa_ring_setup(struct fa_session *session, const struct fa_wire_message *message,
                  struct fa_error *error);
/* Takes of what lies in the session's ring now. False: not all yet, or the session is
 * closing. */
bool fa_ring_catch_up(struct fa_session *session);
/* Looks after it from now on, until it is quiet. */
void fa_ring_activate(struct fa_session_ring *ring);
/* A request ended without the engine, whose client may sleep. */
void fa_ring_wake_later(struct fa_session *session);
struct fa_completion_records *fa_ring_records(struct fa_session *session);

/* The session closes: nothing more is read. Then, when its streams are gone, the rest. */
void fa_ring_close(struct fa_session *session);
void fa_ring_free(struct fa_session *session);

/* For status. */
struct fa_ring_status {
	uint64_t bytes, requests, doorbells;
	bool polled;
};
/* False if there is none. */
bool fa_ring_status(const struct fa_session *session, struct fa_ring_status *ret_status);
