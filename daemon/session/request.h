/*
 * Requests of streams: checked, charged, handed to the engine with references to their buffers, and
 * answered when they come back. Loop thread. The kind defines the work (requests/). Refused
 * requests also pass through the engine: a stream's values finish in order.
 */
#pragma once

#include "common/error.h"
#include "daemon/session/session.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_kv_step;
struct fa_request_kind;

#define FA_REQUEST_BUFFERS_MAX 14
/* Requests of larger kinds are not cached. */
#define FA_REQUEST_CACHED_BYTES 3072

struct fa_request {
	struct fa_job job; /* must be first */
	const struct fa_request_kind *kind;
	struct fa_session *session;
	uint32_t stream; /* the stream may be closing */
	bool refused;    /* keeps nothing, but finishes in order */
	bool by_ring;    /* came by a ring; a record answers success */
	bool reported;   /* fa_request_reported() was called */
	struct fa_registered_buffer *buffers[FA_REQUEST_BUFFERS_MAX];
	unsigned int n_buffers;
	struct fa_charge charge, charge_gates, charge_metadata, charge_host;

	/* Values of other streams that must finish first; without device work the request waits for
	 * them before it is confirmed. */
	uint64_t *dependencies;      /* [FA_SESSION_STREAMS], 0: none; NULL: all 0 */
	struct fa_list blocked_link; /* session.blocked */

	struct fa_kv_step *step; /* NULL: none */
	struct fa_list step_link;
	uint32_t layer, n_layers; /* n_layers 0: one */
};

struct fa_request_kind {
	const char *name; /* for traces */
	size_t bytes;     /* of a struct beginning with struct fa_request */
	bool while_draining;
	/* Fills job.work, and keeps no pointers into @message. An error refuses the request. */
	int (*bind)(struct fa_request *request, const struct fa_wire_message *message,
	            struct fa_error *error);
	/* Frees what only a running request needs; also after a failed bind(). */
	void (*release)(struct fa_request *request);
	/* May be NULL. confirm(), the loop's part (job.confirms), returns the status; it follows
	 * bind() if the request waits for nothing. */
	void (*refused)(struct fa_request *request, const struct fa_wire_message *message);
	int (*confirm)(struct fa_request *request, struct fa_error *error);
	void (*ended)(struct fa_request *request);
};

struct fa_request_place {
	uint32_t stream;
	uint64_t value;
	bool by_ring;
	bool chained; /* ends with its predecessor's error (engine/engine.h) */
};

/* The completion answers, also a refused request. -EPROTO: @place.value is not the next. */
int fa_request_submit(struct fa_session *session, const struct fa_wire_message *message,
                      size_t n_fds, uint64_t received_ns, const struct fa_request_kind *kind,
                      struct fa_request_place place, struct fa_error *error);

/* Completes at once if the stream is idle. */
int fa_request_mark(struct fa_session *session, const struct fa_wire_message *message, size_t n_fds,
                    uint64_t received_ns, struct fa_request_place place, struct fa_error *error);

/* A request of the daemon's own, on FA_SESSION_STREAM_OWN, unseen by clients. The caller fills it
 * instead of bind(). NULL: no memory. */
struct fa_request *fa_request_new(struct fa_session *session, const struct fa_request_kind *kind);
void fa_request_submit_own(struct fa_request *request);
/* The request must not be submitted. Takes NULL. */
struct fa_request *fa_request_free(struct fa_request *request);

/* Called in bind(). Returns the memory of a view's buffer, which the request now references.
 * -ENOENT. */
int fa_request_buffer(struct fa_request *request, const struct fa_wire_view *view, const char *name,
                      const struct fa_device_memory **ret_memory, struct fa_error *error);
/* The buffer is referenced; NULL: none. */
const struct fa_device_memory *fa_request_memory(const struct fa_request *request, uint32_t buffer);

/* Called in bind(), for paged work. -EDQUOT, and errors of paged_prepare(). */
int fa_request_prepare(struct fa_request *request, struct fa_error *error);

/* Called in bind(): wait for @value of another stream. -ENOMEM. */
int fa_request_wait(struct fa_request *request, uint32_t stream, uint64_t value,
                    struct fa_error *error);

/* The session's streams stay open. */
void fa_request_cancel_all(struct fa_session *session, int status);

/* Counts for no limits: the device has reported success to the client. */
void fa_request_reported(struct fa_request *request);

/* Confirms, or answers and frees, what the engine returned. */
void fa_request_finish(struct fa_job *job);

/* @doomed: cancels those of this step (NULL: none). */
void fa_request_unblock(struct fa_session *session, const struct fa_kv_step *doomed);
