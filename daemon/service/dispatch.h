/*
 * From bytes to handlers: one table says for each message what state it needs, what
 * it may carry, and who answers it. Loop thread.
 */
#pragma once

#include "daemon/session/session.h"

#include <stdbool.h>
#include <stddef.h>

struct fa_request_kind;

/* One message and what came with it. */
struct fa_call {
	struct fa_session *session;
	const struct fa_wire_message *message;
	int *fds;     /* NULL: some that came are lost, as there was none left for them */
	size_t n_fds; /* as many as the client sent */
	uint64_t received_ns;
	bool by_ring;
	bool chained; /* a part of one message, behind another of its parts */
};

/*
 * A handler answers the client itself and returns 0, or returns a negative errno
 * with a sentence, which is then the answer. -EPROTO and -EPROTONOSUPPORT end the
 * connection after it; no handler returns them for anything else.
 */
typedef int fa_call_handler(struct fa_call *call, struct fa_error *error);

/* For handlers of requests of streams: fa_request_submit(). */
int fa_call_submit(const struct fa_call *call, const struct fa_request_kind *kind, uint32_t stream,
                   uint64_t value, struct fa_error *error);

/*
 * Handles one packet. Handlers take what they keep of @fds by setting it to -1. @lost: more
 * had come than those, and could not be received: what wants them is refused, with -EMFILE.
 * Returns whether it pays to look for the next packet at once: it does not if the
 * client was answered and now has its turn.
 */
bool fa_dispatch(struct fa_session *session, const void *bytes, size_t length, int *fds,
                 size_t n_fds, bool lost);

/* Handles one message that came through the session's ring at @received_ns. */
void fa_dispatch_ring(struct fa_session *session, const void *bytes, size_t length,
                      uint64_t received_ns);

/* Answers a request that came back from the engine, and frees it. */
void fa_dispatch_finished(struct fa_job *request);
