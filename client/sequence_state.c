/* States of linear layers. */
#include "client/cancel.h"
#include "client/gates.h"
#include "client/kv.h"
#include "client/last_error.h"
#include "client/request.h"
#include "client/struct_size.h"
#include "client/submit.h"

#include <errno.h>

static int copy(struct fa_client *client, const struct fa_sequence_state *state, uint32_t flags,
                struct fa_ticket *ret_ticket)
{
	struct fa_client_request request = { .message.type = FA_WIRE_SEQUENCE_STATE };
	struct fa_wire_sequence_state *wire = &request.message.sequence_state;
	struct fa_sequence_state padded;
	const void *s;
	int r;

	r = fa_struct_in("fa_sequence_state", state, &padded, sizeof(padded), &s);
	if (r < 0)
		return r;
	state = s;
	if (state->reserved)
		return fa_error_set(-EINVAL, "fa_sequence_state.reserved is not 0");
	r = fa_request_tensor_of(&request, "data", client, &state->data, state->data.dtype, 1,
	                         &wire->data);
	if (r < 0)
		return r;
	wire->stream = state->stream;
	wire->sequence = state->sequence;
	wire->flags = flags;
	wire->state = state->state;
	wire->tokens = state->tokens;
	request.message.timeout_ns = state->timeout_ns;
	r = fa_request_gates(&request, state->gates);
	if (r == 0)
		r = fa_kv_check_states(client);
	if (r < 0)
		return r;
	return flags & FA_WIRE_COPY_WRITE
	               ? fa_request_submit_write(client, &request, state->sequence, ret_ticket)
	               : fa_request_submit(client, &request, ret_ticket);
}

int fa_sequence_read_state(struct fa_client *handle, const struct fa_sequence_state *state,
                           struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return copy(client, state, 0, ret_ticket);
}

int fa_sequence_write_state(struct fa_client *handle, const struct fa_sequence_state *state,
                            struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return copy(client, state, FA_WIRE_COPY_WRITE, ret_ticket);
}
