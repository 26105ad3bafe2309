/* One message of a client with its descriptors, as handlers take it. Loop thread. */
#pragma once

#include "daemon/session/request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_call {
	struct fa_session *session;
	const struct fa_wire_message *message;
	int *fds; /* NULL: some were lost, for lack of descriptors */
	size_t n_fds;
	uint64_t received_ns;
	bool by_ring;
	bool chained;  /* one of several requests of a message */
	bool may_pass; /* set by the handler: what refuses the message ends soon */
	bool is_held;
};

/*
 * Answers the client, or returns a negative errno with a sentence to answer with; -EPROTO and
 * -EPROTONOSUPPORT also close the connection. A handler that keeps a descriptor sets its entry in
 * fds to -1.
 */
typedef int fa_call_handler(struct fa_call *call, struct fa_error *error);

int fa_call_submit(const struct fa_call *call, const struct fa_request_kind *kind, uint32_t stream,
                   uint64_t value, struct fa_error *error);
