#include "daemon/requests/attention.h"

#include "common/cleanup.h"
#include "daemon/memory/overlap.h"
#include "daemon/memory/tensor_view.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <string.h>

struct attention {
	struct fa_request request; /* must be first */
	/* cu_seqlens_q, cu_seqlens_k, alibi_slopes, sinks, prefix_lengths */
	uint32_t *vectors;
	uint32_t *lengths; /* of a batch that the backend rewrote */
};

_Static_assert((int)FA_VIEW_Q == (int)FA_DEVICE_Q && (int)FA_VIEW_MASK == (int)FA_DEVICE_MASK &&
                       (int)FA_VIEW_V_SCALES == (int)FA_DEVICE_V_SCALES &&
                       (int)_FA_VIEW_N == (int)_FA_DEVICE_TENSOR_N,
               "one order");
_Static_assert(sizeof(float) == sizeof(uint32_t), "one vector of words holds both");

static void release(struct fa_request *request)
{
	struct attention *attention = fa_container_of(request, struct attention, request);
	const struct fa_context *context = request->session->context;

	if (context->ops->attention_release)
		context->ops->attention_release(context->device, &request->job.work);
	free(fa_steal_ptr(attention->vectors));
	free(fa_steal_ptr(attention->lengths));
	request->job.params = (struct fa_attention_params){};
}

static const void *copy(uint32_t **next, const void *from, size_t n)
{
	uint32_t *to = *next;

	if (!from)
		return NULL;
	memcpy(to, from, n * sizeof(uint32_t));
	*next += n;
	return to;
}

/* The parameters point into the message, which ends with the handler. */
static int copy_vectors(struct attention *attention, const struct fa_wire_attention *message,
                        struct fa_error *error)
{
	struct fa_attention_params *params = &attention->request.job.params;
	size_t n = message->n_cu_seqlens_q + message->n_cu_seqlens_k + message->n_alibi_slopes +
	           message->n_sinks + message->n_prefix_lengths;
	uint32_t *next;

	if (!n)
		return 0;
	next = attention->vectors = malloc(n * sizeof(*next));
	if (!next)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a request's vectors");
	params->cu_seqlens_q = copy(&next, params->cu_seqlens_q, message->n_cu_seqlens_q);
	params->cu_seqlens_k = copy(&next, params->cu_seqlens_k, message->n_cu_seqlens_k);
	params->alibi_slopes = copy(&next, params->alibi_slopes, message->n_alibi_slopes);
	params->sinks = copy(&next, params->sinks, message->n_sinks);
	params->prefix_lengths = copy(&next, params->prefix_lengths, message->n_prefix_lengths);
	return 0;
}

static bool is_empty(const struct fa_attention_params *params)
{
	return !params->batch || !params->seqlen_q;
}

/* An empty batch has the limits of one sequence. */
static int check_kernel(const struct fa_context *context, const struct fa_attention_params *params,
                        struct fa_error *error)
{
	struct fa_attention_params asked = *params;

	if (!asked.batch)
		asked.batch = 1;
	return context->ops->check(context->device, &asked, error);
}

static int prepare(struct fa_request *request, struct fa_error *error)
{
	const struct fa_context *context = request->session->context;
	struct fa_device_work *device_work = &request->job.work;
	int r;

	if (!context->ops->attention_prepare)
		return 0;
	device_work->params = &request->job.params;
	r = context->ops->attention_prepare(context->device, device_work, error);
	if (r == 0 && device_work->host_bytes)
		r = fa_charge_add(&request->charge_host, request->session->tenant,
		                  FA_RESOURCE_BUFFER_BYTES, device_work->host_bytes, error);
	return r;
}

static int check_overlap(const struct fa_wire_attention *attention,
                         const struct fa_device_memory *const memories[_FA_VIEW_N],
                         struct fa_error *error)
{
	struct fa_tensor_use uses[_FA_VIEW_N];

	for (unsigned int i = 0; i < _FA_VIEW_N; ++i)
		uses[i] = (struct fa_tensor_use){ .name = fa_tensor_view_name(i),
			                          .view = fa_tensor_view_of(attention, i),
			                          .memory = memories[i],
			                          .written = i == FA_VIEW_OUT || i == FA_VIEW_LSE };
	return fa_tensor_uses_check(uses, _FA_VIEW_N, error);
}

static int bind_attention(struct fa_request *request, const struct fa_wire_message *message,
                          struct fa_error *error)
{
	struct attention *attention = fa_container_of(request, struct attention, request);
	const struct fa_device_memory *memories[_FA_VIEW_N] = { NULL };
	struct fa_context *context = request->session->context;
	int r = 0;

	for (unsigned int i = 0; i < _FA_VIEW_N && r == 0; ++i) {
		const struct fa_wire_view *view = fa_tensor_view_of(&message->attention, i);

		if (i >= FA_VIEW_LSE && !view->rank)
			continue;
		r = fa_request_buffer(request, view, fa_tensor_view_name(i), &memories[i], error);
		request->job.work.memories[i] = memories[i];
	}
	if (r == 0)
		r = fa_attention_bind(&message->attention, memories, &request->job.params, error);
	if (r == 0)
		r = check_overlap(&message->attention, memories, error);
	if (r == 0)
		r = check_kernel(context, &request->job.params, error);
	if (r == 0 && is_empty(&request->job.params)) {
		request->job.work.op = FA_DEVICE_NONE;
		return 0;
	}
	if (r == 0)
		r = copy_vectors(attention, &message->attention, error);
	if (r == 0 && context->ops->attention_rewrite)
		r = context->ops->attention_rewrite(context->device, &request->job.params,
		                                    &attention->lengths, error);
	if (r == 0)
		r = prepare(request, error);
	return r;
}

const struct fa_request_kind fa_attention_kind = {
	.name = "Attention",
	.bytes = sizeof(struct attention),
	.bind = bind_attention,
	.release = release,
};
