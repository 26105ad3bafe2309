/*
 * StepEnd: waits for all requests of its step, moves the tokens of a kept path together, and
 * commits or aborts. The client sees success if, and only if, the tokens are durable. If it waits
 * for nothing it is confirmed when read, without the engine. A failed commit, or a malformed
 * StepEnd, aborts the step.
 */
#include "daemon/requests/kv.h"

#include "common/cleanup.h"
#include "daemon/kv/growth.h"
#include "daemon/kv/step.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>

struct end {
	struct fa_request request; /* must be first */
	bool commits;
	/* of kept tokens, one request a group at most */
	struct fa_paged_request *moves;
	uint32_t *vectors;
};

static struct end *end_of(struct fa_request *request)
{
	return fa_container_of(request, struct end, request);
}

static void release(struct fa_request *request)
{
	struct fa_context *context = request->session->context;
	struct end *end = end_of(request);

	if (request->job.work.paged)
		context->ops->paged_release(context->device, &request->job.work);
	free(fa_steal_ptr(end->moves));
	free(fa_steal_ptr(end->vectors));
}

static int check_path(const struct fa_wire_step_end *m, uint32_t item, uint32_t n_new,
                      struct fa_error *error)
{
	for (uint32_t i = m->cu_keep[item]; i < m->cu_keep[item + 1]; ++i)
		if (m->keep[i] >= n_new || (i > m->cu_keep[item] && m->keep[i] <= m->keep[i - 1]))
			return fa_fail(error, -EINVAL,
			               "keep[%" PRIu32 "] is %" PRIu32
			               "; expected numbers that ascend and are below %" PRIu32
			               ", the new tokens of item %" PRIu32,
			               i, m->keep[i], n_new, item);
	return 0;
}

static int check_keep(const struct fa_kv_step *step, const struct fa_wire_step_end *m,
                      struct fa_error *error)
{
	int r = 0;

	if (m->n_cu_keep != (size_t)step->n_items + 1)
		return fa_fail(error, -EINVAL,
		               "cu_keep has %zu entries; expected %" PRIu32
		               ", one more than the step has items",
		               m->n_cu_keep, step->n_items + 1);
	if (m->cu_keep[0] || m->cu_keep[step->n_items] != m->n_keep)
		return fa_fail(error, -EINVAL,
		               "cu_keep goes from %" PRIu32 " to %" PRIu32
		               "; expected 0 to %zu, the entries of keep",
		               m->cu_keep[0], m->cu_keep[step->n_items], m->n_keep);
	for (uint32_t item = 0; item < step->n_items; ++item)
		if (m->cu_keep[item + 1] < m->cu_keep[item])
			return fa_fail(error, -EINVAL,
			               "cu_keep[%" PRIu32 "] is %" PRIu32
			               "; expected at least %" PRIu32 ", the one before it",
			               item + 1, m->cu_keep[item + 1], m->cu_keep[item]);
	for (uint32_t item = 0; item < step->n_items && r == 0; ++item) {
		const struct fa_pool_step_entry *entry =
			&step->plan->entries[step->entry_of_item[item]];

		r = check_path(m, item, (uint32_t)(entry->after - entry->before), error);
	}
	return r;
}

static int fill_group(struct end *end, struct fa_kv_step *step, uint32_t i,
                      const struct fa_wire_step_end *m, uint32_t **vectors, struct fa_error *error)
{
	const struct fa_pool_step_group *plan = &step->plan->groups[i];
	struct fa_pool *pool = step->session->context->kv->pool;
	const struct fa_kv_group *group = &step->groups[i];
	uint32_t n = plan->end - plan->begin, n_moves = 0;
	uint32_t *cu_moves = *vectors, *to = cu_moves + n + 1, *moved = to + n;
	struct fa_device_work *device_work = &end->request.job.work;

	cu_moves[0] = 0;
	for (uint32_t e = 0; e < n; ++e) {
		const struct fa_pool_step_entry *entry = &step->plan->entries[plan->begin + e];
		const uint32_t begin = m->cu_keep[entry->item];
		const uint32_t n_keep = m->cu_keep[entry->item + 1] - begin;
		const uint32_t *from = NULL;
		uint32_t n_from = 0;
		int r;

		to[e] = 0;
		if (n_keep < entry->after - entry->before) {
			r = fa_pool_step_keep(pool, step->plan, plan->begin + e,
			                      n_keep ? m->keep + begin : NULL, n_keep, error, &from,
			                      &n_from, &to[e]);
			if (r < 0)
				return r;
		}
		for (uint32_t j = 0; j < n_from; ++j)
			moved[n_moves++] = from[j];
		cu_moves[e + 1] = n_moves;
	}
	*vectors = moved + n_moves;
	if (n_moves)
		device_work->paged[device_work->n_paged++] = (struct fa_paged_request){
			.op = FA_PAGED_MOVE,
			.move = {
				.cache = &group->cache,
				.batch = (int32_t)n,
				.cu_moves = cu_moves,
				.from = moved,
				.to = to,
				.table = group->step.table,
				.table_start = group->step.table_start,
				.table_entries = group->step.table_entries,
			},
		};
	return 0;
}

static int keep(struct end *end, struct fa_kv_step *step, const struct fa_wire_step_end *m,
                struct fa_error *error)
{
	struct fa_device_work *device_work = &end->request.job.work;
	uint32_t *vectors;
	int r;

	r = check_keep(step, m, error);
	if (r < 0)
		return r;
	end->moves = calloc(step->plan->n_groups, sizeof(*end->moves));
	end->vectors = vectors = calloc(
		2 * (size_t)step->n_items + step->plan->n_groups + m->n_keep + 1, sizeof(*vectors));
	if (!end->moves || !vectors)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a step's end");
	device_work->paged = end->moves;
	for (uint32_t i = 0; i < step->plan->n_groups && r == 0; ++i)
		r = fill_group(end, step, i, m, &vectors, error);
	if (r < 0 || !device_work->n_paged)
		return r;
	device_work->op = FA_DEVICE_PAGED;
	device_work->tables = step->tables;
	return fa_request_prepare(&end->request, error);
}

/* The steps on which this was planned commit first. */
static int wait_for_predecessors(struct fa_request *request, const struct fa_kv_step *step,
                                 struct fa_error *error)
{
	int r = 0;

	for (uint32_t i = 0; i < step->n_predecessors && r == 0; ++i) {
		const struct fa_kv_step *other = step->predecessors[i];

		if (other->end_request)
			r = fa_request_wait(request, other->end_request->stream,
			                    other->end_request->job.value, error);
		else if (other->end_requested && !other->closed)
			r = fa_fail(error, -ECANCELED,
			            "step %" PRIu32 ", on which step %" PRIu32
			            " is planned, was not committed",
			            other->id, step->id);
		else if (!other->end_requested && other->id)
			r = fa_fail(error, -EBUSY,
			            "step %" PRIu32 " is planned on step %" PRIu32
			            ", which was not asked to end",
			            step->id, other->id);
	}
	return r;
}

static int wait_for_requests(struct fa_request *request, const struct fa_kv_step *step,
                             struct fa_error *error)
{
	struct fa_list *pos;
	int r = 0;

	fa_list_for_each(pos, &step->requests) {
		const struct fa_request *other = fa_container_of(pos, struct fa_request, step_link);

		if (r == 0 && other != request)
			r = fa_request_wait(request, other->stream, other->job.value, error);
	}
	return r;
}

static int bind_order(struct fa_request *request, struct fa_kv_step *step, bool commits,
                      struct fa_error *error)
{
	int r;

	r = wait_for_requests(request, step, error);
	for (uint32_t i = 0; commits && i < step->n_predecessors && r == 0; ++i)
		/* This predecessor is a read of tokens that are not durable yet. */
		if (!step->predecessors[i]->id)
			r = wait_for_requests(request, step->predecessors[i], error);
	return r == 0 && commits ? wait_for_predecessors(request, step, error) : r;
}

static int bind_end(struct fa_request *request, const struct fa_wire_message *message,
                    struct fa_error *error)
{
	const struct fa_wire_step_end *m = &message->step_end;
	struct end *end = end_of(request);
	struct fa_kv_step *step;
	int r;

	r = fa_kv_step_find(request->session, m->step, error, &step);
	if (r < 0)
		return r;
	if (step->end_requested)
		return fa_fail(error, -EINVAL, "step %" PRIu32 " was asked to end already",
		               m->step);
	step->end_requested = true;
	step->end_request = request;
	request->step = step;
	request->layer = UINT32_MAX;
	fa_list_append(&step->requests, &request->step_link);
	request->job.work.op = FA_DEVICE_NONE;
	request->job.confirms = true;
	end->commits = m->flags & FA_WIRE_STEP_COMMIT;
	step->aborting = !end->commits;
	if (m->flags & ~FA_WIRE_STEP_COMMIT)
		return fa_fail(error, -ENOTSUP,
		               "flags %#" PRIx32
		               " are not supported; expected none but %#x, commit",
		               m->flags, FA_WIRE_STEP_COMMIT);
	if ((m->n_keep || m->n_cu_keep) && !end->commits)
		return fa_fail(error, -EINVAL, "keep came, and flags do not say commit");
	r = end->commits && !step->failed ? fa_kv_step_check_states(step, error) : 0;
	if (r == 0)
		r = bind_order(request, step, end->commits, error);
	if (r == 0 && (m->n_keep || m->n_cu_keep))
		r = keep(end, step, m, error);
	return r;
}

/* The step of a refused commit can no longer be committed. */
static void refused(struct fa_request *request, const struct fa_wire_message *message)
{
	struct fa_kv_step *step = NULL;

	if (request->step)
		request->step->aborting = true;
	else if (fa_kv_step_find(request->session, message->step_end.step, NULL, &step) == 0)
		fa_kv_step_abandon(step);
}

static int confirm(struct fa_request *request, struct fa_error *error)
{
	struct fa_context *context = request->session->context;
	struct fa_kv_step *step = request->step;
	int r = 0;

	fa_pool_set_time(context->kv->pool, fa_kv_now_ns());
	if (!end_of(request)->commits)
		fa_pool_step_abort(context->kv->pool, step->plan);
	else if (step->failed)
		r = fa_kv_step_refuse_failed(step, error);
	else
		r = fa_pool_step_commit(context->kv->pool, step->plan, error);
	step->closed = !end_of(request)->commits || r == 0;
	return r;
}

static void ended(struct fa_request *request)
{
	if (request->step) {
		request->step->abandoned = true;
		request->step->end_request = NULL;
	}
	fa_kv_step_request_ended(request);
}

const struct fa_request_kind fa_kv_end_kind = {
	.name = "StepEnd",
	.bytes = sizeof(struct end),
	.while_draining = true,
	.bind = bind_end,
	.release = release,
	.refused = refused,
	.confirm = confirm,
	.ended = ended,
};
