#include "client/request.h"

#include "client/tensor.h"

int fa_request_tensor(struct fa_client_request *request, const char *name, struct fa_client *client,
                      const struct fa_tensor *tensor, uint32_t rank, struct fa_wire_view *ret_view)
{
	int r;

	r = fa_tensor_view(name, client, tensor, rank, ret_view);
	if (r < 0)
		return r;
	request->tensors[request->n_tensors++] = (struct fa_client_request_tensor){ name, tensor };
	return 0;
}

uint32_t *fa_request_stream(struct fa_wire_message *message, uint64_t **ret_value)
{
	switch (message->type) {
	case FA_WIRE_ATTENTION:
		*ret_value = &message->attention.value;
		return &message->attention.stream;
	case FA_WIRE_SEQUENCE_COPY:
		*ret_value = &message->sequence_copy.value;
		return &message->sequence_copy.stream;
	case FA_WIRE_STEP_ATTEND:
		*ret_value = &message->step_attend.value;
		return &message->step_attend.stream;
	case FA_WIRE_STEP_ATTEND_LAYERS:
		*ret_value = &message->step_attend_layers.attend.value;
		return &message->step_attend_layers.attend.stream;
	case FA_WIRE_STEP_BEGIN:
		*ret_value = &message->step_begin.value;
		return &message->step_begin.stream;
	case FA_WIRE_STEP_END:
		*ret_value = &message->step_end.value;
		return &message->step_end.stream;
	case FA_WIRE_MARKER:
		*ret_value = &message->marker.value;
		return &message->marker.stream;
	default:
		return NULL;
	}
}

uint64_t fa_request_values(const struct fa_wire_message *message)
{
	return message->type == FA_WIRE_STEP_ATTEND_LAYERS ? message->step_attend_layers.n_layers
	                                                   : 1;
}
