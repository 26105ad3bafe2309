/*
 * Requests of streams from the message to the completion: checked, charged, handed to
 * the engine with references to their buffers, and answered when they come back. Loop
 * thread.
 *
 * What they are to do is their kind's affair: requests/attention.c, requests/kv_attend.c and others. A
 * refused one goes through the engine all the same, so that its value is finished in its
 * turn.
 */
#pragma once

#include "common/error.h"
#include "daemon/session/session.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_kv_step;
struct fa_request_kind;

#define FA_REQUEST_BUFFERS_MAX 8
/* What any kind's struct takes, about; those that have ended are kept for the next. */
#define FA_REQUEST_CACHED_BYTES 2304

struct fa_request {
	struct fa_job job; /* first: what the engine gives back */
	const struct fa_request_kind *kind;
	struct fa_session *session;
	uint32_t stream; /* id; the stream itself may be closing */
	bool refused;    /* holds nothing, but waits for its turn */
	bool by_ring;    /* its record is its answer, unless it fails */
	struct fa_registered_buffer *buffers[FA_REQUEST_BUFFERS_MAX];
	unsigned int n_buffers;
	struct fa_charge charge, charge_gates, charge_metadata, charge_host;

	/* Values of other streams that must have finished before it starts, or before it is
	 * confirmed if the device has nothing to do. */
	uint64_t *dependencies;      /* [FA_SESSION_STREAMS], 0: none; NULL: it waits for nothing */
	struct fa_list blocked_link; /* session.blocked */

	/* Of the KV cache's kinds. */
	struct fa_kv_step *step; /* which it is part of; NULL: none */
	struct fa_list step_link;
	uint32_t layer;
};

struct fa_request_kind {
	size_t bytes; /* of the kind's own struct, which begins with struct fa_request */
	/* It may come while work in flight is waited for, at the end. */
	bool while_draining;
	/* Says what is to be done, in job.work and what belongs to it; @message will be
	 * gone. An error: it is refused. */
	int (*bind)(struct fa_request *request, const struct fa_wire_message *message,
	            struct fa_error *error);
	/* Gives up what only a request that is to run needs; also of a half-bound one. */
	void (*release)(struct fa_request *request);
	/* NULL where there is nothing to do: it was refused, by bind() or before; the loop's
	 * part in it (job.confirms), whose result is its status, and which follows bind() at once
	 * if the request waits for nothing; it has ended. */
	void (*refused)(struct fa_request *request, const struct fa_wire_message *message);
	int (*confirm)(struct fa_request *request, struct fa_error *error);
	void (*ended)(struct fa_request *request);
};

/* The place of a request in its stream, as its message says it. */
struct fa_request_place {
	uint32_t stream;
	uint64_t value;
	bool by_ring;
	bool chained; /* to the one before it (engine/engine.h) */
};

/*
 * Takes the request, whether it is good or not. Returns 0, or -EPROTO with a sentence if
 * the stream's values are out of order.
 */
int fa_request_submit(struct fa_session *session, const struct fa_wire_message *message,
                      size_t n_fds, uint64_t received_ns, const struct fa_request_kind *kind,
                      struct fa_request_place place, struct fa_error *error);

extern const struct fa_request_kind fa_marker_kind;

/*
 * The same for a Marker. One that nothing is before, in its stream, ends here and now.
 */
int fa_request_mark(struct fa_session *session, const struct fa_wire_message *message, size_t n_fds,
                    uint64_t received_ns, struct fa_request_place place, struct fa_error *error);

/*
 * The same for one of the daemon's own, on the session's own stream, which nobody is told
 * of: @request, made by fa_request_new(), is bound already.
 */
struct fa_request *fa_request_new(struct fa_session *session, const struct fa_request_kind *kind);
void fa_request_submit_own(struct fa_request *request);
/* Of one that was not submitted. */
struct fa_request *fa_request_free(struct fa_request *request);

/* For bind(): the memory of a view's buffer, which the request keeps alive from now on.
 * -ENOENT. */
int fa_request_buffer(struct fa_request *request, const struct fa_wire_view *view, const char *name,
                      const struct fa_device_memory **ret_memory, struct fa_error *error);

/* For bind() of what is over pages: the device prepares it, and what that takes is charged.
 * -EDQUOT, and what paged_prepare() says. */
int fa_request_prepare(struct fa_request *request, struct fa_error *error);

/* For bind(): it is not to start before @value of another stream has finished. -ENOMEM. */
int fa_request_wait(struct fa_request *request, uint32_t stream, uint64_t value,
                    struct fa_error *error);

/* Asks that all requests in flight end early, with @status. Their streams stay, so
 * that what comes later is still answered in its turn. */
void fa_request_cancel_all(struct fa_session *session, int status);

/* Takes a request that the engine gave back: has it confirmed, or answers and frees it. */
void fa_request_finish(struct fa_job *job);

/* Lets what is held start whose wait is over, and @doomed's end. NULL: nobody's. */
void fa_request_unblock(struct fa_session *session, const struct fa_kv_step *doomed);
