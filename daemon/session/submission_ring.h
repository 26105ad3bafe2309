/*
 * The submission rings of sessions (common/ring.h). Loop thread. Entries are copied, verified, and
 * handled like packets; a packet waits for older entries.
 *
 * A ring is polled until nothing has come for spin_us, or on a GPU for spin_step_us while the
 * session has a step in flight; then its doorbell is armed. Fruitless polling backs off. Doorbells
 * are watched edge-triggered and never read: the client could make a read block.
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
	uv_idle_t idle;     /* active while rings are polled */
	uv_poll_t poll;     /* polls doorbell_epoll */
	int doorbell_epoll; /* watches all doorbells */
	struct fa_list polled;
	unsigned int n_polled;
	uint64_t n_submitted;             /* through the ring */
	uint64_t n_requests, n_doorbells; /* of all rings */
	unsigned int n_rings;
	bool polls;  /* not with one processor */
	bool yields; /* few processors: let other threads run */

	_Alignas(8) unsigned char entry[FA_WIRE_BYTES_MAX];
};

int fa_rings_init(struct fa_rings *rings, struct fa_context *context);
/* After the handles were closed. */
void fa_rings_deinit(struct fa_rings *rings);
bool fa_rings_are_polled(const struct fa_rings *rings);

int fa_ring_setup(struct fa_session *session, const struct fa_wire_message *message,
                  struct fa_error *error);
/* Handles a bounded number of entries. False: some are left, or the session is closing. */
bool fa_ring_catch_up(struct fa_session *session);
/* Starts polling. */
void fa_ring_activate(struct fa_session_ring *ring);
/* Wakes it after the current batch. */
void fa_ring_wake_later(struct fa_session *session);
struct fa_completion_records *fa_ring_records(struct fa_session *session);

/* Followed by fa_ring_free() when the streams are freed. */
void fa_ring_close(struct fa_session *session);
void fa_ring_free(struct fa_session *session);

struct fa_ring_status {
	uint64_t bytes, requests, doorbells;
	bool polled;
};
/* False: there is no ring. */
bool fa_ring_status(const struct fa_session *session, struct fa_ring_status *ret_status);
