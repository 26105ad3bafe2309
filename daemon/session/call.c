#include "daemon/session/call.h"

int fa_call_submit(const struct fa_call *call, const struct fa_request_kind *kind, uint32_t stream,
                   uint64_t value, struct fa_error *error)
{
	const struct fa_request_place place = {
		.stream = stream, .value = value, .by_ring = call->by_ring, .chained = call->chained
	};

	return fa_request_submit(call->session, call->message, call->n_fds, call->received_ns, kind,
	                         place, error);
}
