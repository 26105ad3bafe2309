/* SequenceCopy: copies tokens of one layer between tensors and pages. */
#include "daemon/requests/kv.h"

#include "daemon/kv/view.h"
#include "daemon/memory/overlap.h"
#include "daemon/requests/kv_copy_step.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>

struct copy {
	struct fa_request request; /* must be first */
	struct fa_paged_request paged;
	struct fa_kv_copy_step step;
};

static struct copy *copy_of(struct fa_request *request)
{
	return fa_container_of(request, struct copy, request);
}

static void release(struct fa_request *request)
{
	struct fa_context *context = request->session->context;

	if (request->job.work.paged)
		context->ops->paged_release(context->device, &request->job.work);
}

static int check_overlap(const struct copy *copy, const struct fa_wire_sequence_copy *m,
                         struct fa_error *error)
{
	const bool reads = !(m->flags & FA_WIRE_COPY_WRITE);
	const struct fa_tensor_use uses[] = {
		{ "k", &m->k, fa_request_memory(&copy->request, m->k.buffer), reads },
		{ "v", &m->v, fa_request_memory(&copy->request, m->v.buffer), reads },
	};

	return fa_tensor_uses_check(uses, 2, error);
}

static int bind_tensors(struct copy *copy, const struct fa_kv_group *group,
                        const struct fa_wire_sequence_copy *m, int64_t tokens,
                        struct fa_error *error)
{
	struct fa_paged_append *append = &copy->paged.append;
	const struct fa_paged_cache *cache = &group->cache;
	struct fa_kv_tensor expected = {
		.name = "k",
		.output = !(m->flags & FA_WIRE_COPY_WRITE),
		.dtype = cache->dtype,
		.tokens = tokens,
		.heads = cache->kv_heads,
		.dim = cache->head_dim,
	};
	int r = 0;

	if (m->layer >= (uint32_t)cache->layers)
		return fa_fail(error, -EINVAL, "layer is %" PRIu32 "; expected one below %" PRId32,
		               m->layer, cache->layers);
	if (group->v_in_k && m->v.rank && (m->flags & FA_WIRE_COPY_WRITE))
		return fa_fail(error, -EINVAL, "v is the front of k in this cache; expected none");
	if (m->k.rank)
		r = fa_kv_bind_tensor(&copy->request, &m->k, &expected, &append->k, NULL, error);
	expected.name = "v";
	expected.dim = cache->head_dim_v;
	if (r == 0 && m->v.rank)
		r = fa_kv_bind_tensor(&copy->request, &m->v, &expected, &append->v, NULL, error);
	return r == 0 ? check_overlap(copy, m, error) : r;
}

static int check(const struct fa_wire_sequence_copy *m, uint64_t *ret_end, struct fa_error *error)
{
	const struct fa_wire_view *view = m->k.rank ? &m->k : &m->v;

	if (m->flags & ~FA_WIRE_COPY_WRITE)
		return fa_fail(error, -ENOTSUP,
		               "flags %#" PRIx32 " are not supported; expected none but %#x, write",
		               m->flags, FA_WIRE_COPY_WRITE);
	if (!view->rank)
		return fa_fail(error, -EINVAL, "k and v are absent: there is nothing to copy");
	if (view->shape[0] < 0 || view->shape[0] > FA_KV_STEP_TOKENS_MAX ||
	    m->first > FA_POOL_SEQUENCE_TOKENS_MAX)
		return fa_fail(error, -EINVAL,
		               "%" PRId64 " tokens from %" PRIu64
		               " on are to be copied; expected 0 to %u",
		               view->shape[0], m->first, FA_KV_STEP_TOKENS_MAX);
	*ret_end = m->first + (uint64_t)view->shape[0];
	return 0;
}

static int bind_copy(struct fa_request *request, const struct fa_wire_message *message,
                     struct fa_error *error)
{
	const struct fa_wire_sequence_copy *m = &message->sequence_copy;
	struct copy *copy = copy_of(request);
	struct fa_kv_copy tokens = {
		.sequence = m->sequence,
		.first = m->first,
		.writes = m->flags & FA_WIRE_COPY_WRITE,
		.layer = m->layer,
		.n_layers = 1,
	};
	const struct fa_kv_group *group;
	int r;

	r = check(m, &tokens.end, error);
	if (r == 0)
		r = fa_kv_copy_step_join(request, &tokens, &copy->step, &group, error);
	if (r == 0)
		r = bind_tensors(copy, group, m, (int64_t)(tokens.end - tokens.first), error);
	if (r < 0)
		return r;
	if (tokens.end == tokens.first) {
		request->job.work.op = FA_DEVICE_NONE;
		return 0;
	}
	copy->paged.op = tokens.writes ? FA_PAGED_APPEND : FA_PAGED_READ;
	copy->paged.append.cache = &group->cache;
	copy->paged.append.step = &copy->step.step;
	copy->paged.append.layer = (int32_t)m->layer;
	request->job.work.op = FA_DEVICE_PAGED;
	request->job.work.paged = &copy->paged;
	request->job.work.n_paged = 1;
	request->job.work.tables = request->step->tables;
	return fa_request_prepare(request, error);
}

static void refused(struct fa_request *request, const struct fa_wire_message *message)
{
	request->layer = message->sequence_copy.layer;
	fa_kv_step_request_refused(request);
}

const struct fa_request_kind fa_kv_copy_kind = {
	.name = "SequenceCopy",
	.bytes = sizeof(struct copy),
	.bind = bind_copy,
	.release = release,
	.refused = refused,
	.ended = fa_kv_step_request_ended,
};
