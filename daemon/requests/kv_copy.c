/* SequenceCopy: copies tokens of one layer between tensors and pages. */
#include "daemon/requests/kv.h"

#include "daemon/kv/step.h"
#include "daemon/kv/view.h"
#include "daemon/memory/overlap.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>

struct copy {
	struct fa_request request; /* must be first */
	struct fa_paged_request paged;
	/* step with one sequence, whose new tokens are the copied ones */
	struct fa_paged_step step;
	uint32_t cu_new[2], length, before, first, table_start;
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

/* Returns the entry of a sequence in the step; UINT32_MAX: none. */
static uint32_t find_entry(const struct fa_kv_step *step, uint64_t sequence)
{
	for (uint32_t i = 0; i < step->plan->n_entries; ++i)
		if (step->plan->entries[i].sequence == sequence)
			return i;
	return UINT32_MAX;
}

static int find_step(struct fa_session *session, const struct fa_wire_sequence_copy *m,
                     uint64_t end, struct fa_kv_step **ret_step, uint32_t *ret_entry,
                     struct fa_error *error)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &session->kv.steps) {
		struct fa_kv_step *step = fa_container_of(pos, struct fa_kv_step, link);
		uint32_t i = find_entry(step, m->sequence);
		const struct fa_pool_step_entry *entry;

		if (i == UINT32_MAX || step->end_requested)
			continue;
		entry = &step->plan->entries[i];
		if (m->first < entry->before || end > entry->after)
			continue;
		*ret_step = step;
		*ret_entry = i;
		return 0;
	}
	return fa_fail(error, -EINVAL,
	               "tokens %" PRIu64 " to %" PRIu64
	               " are to be written; expected some that a step in flight has planned for "
	               "the sequence",
	               m->first, end);
}

/* Makes a step of its own for a read. The step keeps the tokens in place until the copy ends. */
static int step_for_read(struct fa_session *session, const struct fa_wire_sequence_copy *m,
                         uint64_t end, struct fa_kv_step **ret_step, struct fa_error *error)
{
	const struct fa_pool_step_item item = { .sequence = m->sequence };
	const struct fa_pool_step_entry *entry;
	const struct fa_actor *actor = NULL;
	struct fa_kv_step *step;
	int r;

	r = fa_kv_actor(session, &actor, error);
	if (r == 0)
		r = fa_kv_step_new(session, actor, 0, &item, 1, NULL, 0, NULL, error, &step);
	if (r < 0)
		return r;
	entry = &step->plan->entries[0];
	if (m->first < entry->first || end > entry->after) {
		r = fa_fail(error, -EINVAL,
		            "tokens %" PRIu64 " to %" PRIu64
		            " are to be read; the sequence has %" PRIu64 " to %" PRIu64,
		            m->first, end, entry->first, entry->after);
		fa_kv_step_abandon(step);
		return r;
	}
	*ret_step = step;
	return 0;
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

static void bind_step(struct copy *copy, const struct fa_kv_group *group, uint32_t index,
                      uint64_t first, uint64_t end)
{
	copy->cu_new[1] = (uint32_t)(end - first);
	copy->before = (uint32_t)first;
	copy->length = (uint32_t)end;
	copy->first = group->step.first[index];
	copy->table_start = group->step.table_start[index];
	copy->step = (struct fa_paged_step){
		.batch = 1,
		.cu_new = copy->cu_new,
		.lengths = &copy->length,
		.lengths_before = &copy->before,
		.first = &copy->first,
		.table = group->step.table,
		.table_start = &copy->table_start,
		.table_entries = group->step.table_entries,
		.host_table = group->step.host_table,
	};
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
	const bool writes = m->flags & FA_WIRE_COPY_WRITE;
	struct copy *copy = copy_of(request);
	const struct fa_kv_group *group;
	uint32_t entry = 0, index = 0;
	struct fa_kv_step *step = NULL;
	uint64_t end = 0;
	int r;

	r = check(m, &end, error);
	if (r < 0)
		return r;
	if (writes)
		r = find_step(request->session, m, end, &step, &entry, error);
	else
		r = step_for_read(request->session, m, end, &step, error);
	if (r < 0)
		return r;
	group = step->groups;
	for (uint32_t i = 0; i < step->plan->n_groups; ++i)
		if (entry >= step->plan->groups[i].begin && entry < step->plan->groups[i].end) {
			group = &step->groups[i];
			index = entry - step->plan->groups[i].begin;
		}
	r = fa_kv_step_add(step, request, m->layer, error);
	if (r < 0) {
		if (!writes)
			fa_kv_step_abandon(step);
		return r;
	}
	/* Let the step of a read end with its request. */
	step->abandoned = !writes;
	r = bind_tensors(copy, group, m, (int64_t)(end - m->first), error);
	if (r < 0)
		return r;
	if (end == m->first) {
		request->job.work.op = FA_DEVICE_NONE;
		return 0;
	}
	bind_step(copy, group, index, m->first, end);
	copy->paged.op = writes ? FA_PAGED_APPEND : FA_PAGED_READ;
	copy->paged.append.cache = &group->cache;
	copy->paged.append.step = &copy->step;
	copy->paged.append.layer = (int32_t)m->layer;
	request->job.work.op = FA_DEVICE_PAGED;
	request->job.work.paged = &copy->paged;
	request->job.work.n_paged = 1;
	request->job.work.tables = step->tables;
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
