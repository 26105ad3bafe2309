#include "client/request.h"

#include "client/last_error.h"
#include "client/registration.h"
#include "client/tensor.h"
#include "schema/overlap.h"

#include <errno.h>

static int add(struct fa_client_request *request, const char *name, struct fa_client *client,
               const struct fa_tensor *tensor, uint32_t rank, struct fa_wire_view *ret_view)
{
	const struct fa_client_registration *registration;
	int r;

	r = fa_tensor_view(name, client, tensor, rank, ret_view, &registration);
	if (r < 0)
		return r;
	request->tensors[request->n_tensors++] = (struct fa_client_request_tensor){
		.name = name,
		.registration = registration,
		.view = ret_view,
	};
	return 0;
}

int fa_request_tensor(struct fa_client_request *request, const char *name, struct fa_client *client,
                      const struct fa_tensor *tensor, uint32_t rank, struct fa_wire_view *ret_view)
{
	if (tensor->buffer && (tensor->dtype < FA_F32 || tensor->dtype > FA_BF16))
		return fa_error_set(-EINVAL, "%s.dtype is %u; expected FA_F32, FA_F16 or FA_BF16",
		                    name, tensor->dtype);
	return add(request, name, client, tensor, rank, ret_view);
}

int fa_request_tensor_of(struct fa_client_request *request, const char *name,
                         struct fa_client *client, const struct fa_tensor *tensor, uint32_t dtype,
                         uint32_t rank, struct fa_wire_view *ret_view)
{
	if (tensor->buffer && tensor->dtype != dtype)
		return fa_error_set(-EINVAL, "%s.dtype is %u; expected %u", name, tensor->dtype,
		                    dtype);
	return add(request, name, client, tensor, rank, ret_view);
}

int fa_request_output(struct fa_client_request *request, const char *name, struct fa_client *client,
                      const struct fa_tensor *tensor, uint32_t rank, struct fa_wire_view *ret_view)
{
	int r;

	r = fa_request_tensor(request, name, client, tensor, rank, ret_view);
	if (r == 0)
		request->tensors[request->n_tensors - 1].written = true;
	return r;
}

static bool overlap(const struct fa_client_request_tensor *a,
                    const struct fa_client_request_tensor *b)
{
	const struct fa_client_registration *memory = a->registration, *other = b->registration;

	if (memory == other)
		return fa_wire_views_overlap(a->view, 0, b->view, 0);
	/* Several buffers may be of one file. */
	return memory->inode && memory->inode == other->inode &&
	       memory->file_system == other->file_system &&
	       fa_wire_views_overlap(a->view, memory->offset, b->view, other->offset);
}

int fa_request_check_overlap(const struct fa_client_request *request)
{
	const struct fa_client_request_tensor *tensors = request->tensors;

	for (size_t i = 0; i < request->n_tensors; ++i)
		for (size_t j = 0; tensors[i].written && j < request->n_tensors; ++j) {
			/* Each pair of outputs is compared once. */
			if (i == j || (tensors[j].written && j < i) ||
			    !overlap(&tensors[i], &tensors[j]))
				continue;
			return fa_error_set(
				-EINVAL,
				"%s overlaps %s; expected memory of its own, as %s is written",
				tensors[i].name, tensors[j].name, tensors[i].name);
		}
	return 0;
}

uint32_t *fa_request_stream(struct fa_wire_message *message, uint64_t **ret_value)
{
	switch (message->type) {
	case FA_WIRE_ATTENTION:
		*ret_value = &message->attention.value;
		return &message->attention.stream;
	case FA_WIRE_PAGES_ATTEND:
		*ret_value = &message->pages_attend.value;
		return &message->pages_attend.stream;
	case FA_WIRE_SEQUENCE_COPY:
		*ret_value = &message->sequence_copy.value;
		return &message->sequence_copy.stream;
	case FA_WIRE_SEQUENCE_PAGES:
		*ret_value = &message->sequence_pages.value;
		return &message->sequence_pages.stream;
	case FA_WIRE_SEQUENCE_STATE:
		*ret_value = &message->sequence_state.value;
		return &message->sequence_state.stream;
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
