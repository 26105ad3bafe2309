/*
 * One message of a client and what came with it: the argument of every handler. Loop thread.
 */
#pragma once

#include "daemon/session/request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
 * A handler answers the client itself and returns 0, or returns a negative errno with a
 * sentence, which is then the answer. -EPROTO and -EPROTONOSUPPORT end the connection after
 * the answer; no handler returns them for anything else. A handler takes ownership of a
 * descriptor by setting its entry in fds to -1.
 */
typedef int fa_call_handler(struct fa_call *call, struct fa_error *error);

/* Submits the call as a request of kind @kind; for handlers of requests of streams. */
int fa_call_submit(const struct fa_call *call, const struct fa_request_kind *kind, uint32_t stream,
                   uint64_t value, struct fa_error *error);
