#include "daemon/requests/attention.h"

#include "common/cleanup.h"
#include "daemon/memory/tensor_view.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <string.h>

struct attention {
	struct fa_request work; /* first */
	/* cu_seqlens_q, cu_seqlens_k, alibi_slopes, sinks: 4 bytes each, all of them */
	uint32_t *tail;
};

_Static_assert((int)FA_VIEW_Q == (int)FA_DEVICE_Q && (int)FA_VIEW_LSE == (int)FA_DEVICE_LSE &&
                       (int)_FA_VIEW_N == (int)_FA_DEVICE_TENSOR_N,
               "one order");
_Static_assert(sizeof(float) == sizeof(uint32_t), "the tail holds both");

static void release(struct fa_request *work)
{
	struct attention *attention = fa_container_of(work, struct attention, work);
	const struct fa_context *context = work->session->context;

	if (context->ops->attention_release)
		context->ops->attention_release(context->device, &work->job.work);
	free(fa_steal_ptr(attention->tail));
	work->job.params = (struct fa_attention_params){};
}

static const void *copy(uint32_t **tail, const void *from, size_t n)
{
	uint32_t *to = *tail;

	if (!from)
		return NULL;
	memcpy(to, from, n * sizeof(uint32_t));
	*tail += n;
	return to;
}

/* The parameters point into the message; it will be gone. */
static int keep_tail(struct attention *attention, const struct fa_wire_attention *message,
                     struct fa_error *error)
{
	struct fa_attention_params *params = &attention->work.job.params;
	size_t n = message->n_cu_seqlens_q + message->n_cu_seqlens_k + message->n_alibi_slopes +
	           message->n_sinks;
	uint32_t *tail;

	if (!n)
		return 0;
	tail = attention->tail = malloc(n * sizeof(*tail));
	if (!tail)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a request's vectors");
	params->cu_seqlens_q = copy(&tail, params->cu_seqlens_q, message->n_cu_seqlens_q);
	params->cu_seqlens_k = copy(&tail, params->cu_seqlens_k, message->n_cu_seqlens_k);
	params->alibi_slopes = copy(&tail, params->alibi_slopes, message->n_alibi_slopes);
	params->sinks = copy(&tail, params->sinks, message->n_sinks);
	return 0;
}

/* What the device needs besides the tensors is charged to who asks. */
static int find_room(struct fa_request *work, struct fa_error *error)
{
	const struct fa_context *context = work->session->context;
	struct fa_device_work *device_work = &work->job.work;
	int r;

	if (!context->ops->attention_prepare)
		return 0;
	device_work->params = &work->job.params;
	r = context->ops->attention_prepare(context->device, device_work, error);
	if (r == 0 && device_work->host_bytes)
		r = fa_charge_add(&work->charge_heap, work->session->tenant,
		                  FA_RESOURCE_BUFFER_BYTES, device_work->host_bytes, error);
	return r;
}

static int bind_attention(struct fa_request *work, const struct fa_wire_message *message,
                          struct fa_error *error)
{
	struct attention *attention = fa_container_of(work, struct attention, work);
	const struct fa_device_memory *memories[_FA_VIEW_N] = { NULL };
	struct fa_context *context = work->session->context;
	int r = 0;

	for (unsigned int i = 0; i < _FA_VIEW_N && r == 0; ++i) {
		const struct fa_wire_view *view = fa_tensor_view_of(&message->attention, i);

		if (i == FA_VIEW_LSE && !view->rank)
			continue;
		r = fa_request_buffer(work, view, fa_tensor_view_name(i), &memories[i], error);
		work->job.work.memories[i] = memories[i];
	}
	if (r == 0)
		r = fa_attention_bind(&message->attention, memories, &work->job.params, error);
	if (r == 0)
		r = context->ops->check(context->device, &work->job.params, error);
	if (r == 0)
		r = keep_tail(attention, &message->attention, error);
	if (r == 0)
		r = find_room(work, error);
	return r;
}

const struct fa_request_kind fa_attention_kind = {
	.bytes = sizeof(struct attention),
	.bind = bind_attention,
	.release = release,
};
