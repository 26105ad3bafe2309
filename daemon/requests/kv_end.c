/*
 * StepEnd: comes behind everything that was asked for its step, moves the tokens of a path
 * that is kept, and is confirmed by the commit: the client sees success when, and only when,
 * the tokens are durable.
 *
 * It ends its step in any case: a commit that cannot be, or was asked for in a wrong way,
 * aborts it.
 */
#include "daemon/requests/kv.h"

#include "common/cleanup.h"
#include "daemon/kv/step.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>

struct end {
	struct fa_request work; /* first */
	bool commits;
	struct fa_paged_request *moves; /* a group one, at most */
	uint32_t *vectors;              /* of the moves */
};

static struct end *end_of(struct fa_request *work)
{
	return fa_container_of(work, struct end, work);
}

static void release(struct fa_request *work)
{
	struct fa_context *context = work->session->context;
	struct end *end = end_of(work);

	if (work->job.work.paged)
		context->ops->paged_release(context->device, &work->job.work);
	free(fa_steal_ptr(end->moves));
	free(fa_steal_ptr(end->vectors));
}

/* ---- keeping a path */

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

/* All of it, before anything is changed. */
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
		const struct fa_pool_step_entry *entry = &step->plan->entries[step->places[item]];

		r = check_path(m, item, (uint32_t)(entry->after - entry->before), error);
	}
	return r;
}

/* The moves of one group, of which @vectors has room for all. Returns how many words. */
static int fill_group(struct end *end, struct fa_kv_step *step, uint32_t i,
                      const struct fa_wire_step_end *m, uint32_t **vectors, struct fa_error *error)
{
	const struct fa_pool_step_group *plan = &step->plan->groups[i];
	struct fa_pool *pool = step->session->context->kv->pool;
	const struct fa_kv_group *group = &step->groups[i];
	uint32_t n = plan->end - plan->begin, n_moves = 0;
	uint32_t *cu_moves = *vectors, *to = cu_moves + n + 1, *moved = to + n;
	struct fa_device_work *work = &end->work.job.work;

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
			/* Where nothing of any item is kept, keep is NULL. */
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
		work->paged[work->n_paged++] = (struct fa_paged_request){
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
	struct fa_device_work *work = &end->work.job.work;
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
	work->paged = end->moves;
	for (uint32_t i = 0; i < step->plan->n_groups && r == 0; ++i)
		r = fill_group(end, step, i, m, &vectors, error);
	if (r < 0 || !work->n_paged)
		return r;
	work->op = FA_DEVICE_PAGED;
	work->tables = step->tables;
	return fa_request_prepare(&end->work, error);
}

/* ---- order */

/* Those that it is planned on are committed before it. */
static int wait_for_ends(struct fa_request *work, const struct fa_kv_step *step,
                         struct fa_error *error)
{
	int r = 0;

	for (uint32_t i = 0; i < step->n_before && r == 0; ++i) {
		const struct fa_kv_step *before = step->before[i];

		if (before->end)
			r = fa_request_wait(work, before->end->stream, before->end->job.value,
			                    error);
		else if (before->ends && !before->over)
			r = fa_fail(error, -ECANCELED,
			            "step %" PRIu32 ", on which step %" PRIu32
			            " is planned, was not committed",
			            before->id, step->id);
		else if (!before->ends && before->id)
			r = fa_fail(error, -EBUSY,
			            "step %" PRIu32 " is planned on step %" PRIu32
			            ", which was not asked to end",
			            step->id, before->id);
	}
	return r;
}

/* Everything that was asked for @step, in any stream. */
static int wait_for_works(struct fa_request *work, const struct fa_kv_step *step,
                          struct fa_error *error)
{
	struct fa_list *pos;
	int r = 0;

	fa_list_for_each(pos, &step->works) {
		const struct fa_request *other = fa_container_of(pos, struct fa_request, step_link);

		if (r == 0 && other != work)
			r = fa_request_wait(work, other->stream, other->job.value, error);
	}
	return r;
}

static int bind_order(struct fa_request *work, struct fa_kv_step *step, bool commits,
                      struct fa_error *error)
{
	int r;

	r = wait_for_works(work, step, error);
	for (uint32_t i = 0; commits && i < step->n_before && r == 0; ++i)
		/* Reads that were planned on what is not durable. */
		if (!step->before[i]->id)
			r = wait_for_works(work, step->before[i], error);
	return r == 0 && commits ? wait_for_ends(work, step, error) : r;
}

static int bind_end(struct fa_request *work, const struct fa_wire_message *message,
                    struct fa_error *error)
{
	const struct fa_wire_step_end *m = &message->step_end;
	struct end *end = end_of(work);
	struct fa_kv_step *step;
	int r;

	r = fa_kv_step_find(work->session, m->step, error, &step);
	if (r < 0)
		return r;
	if (step->ends)
		return fa_fail(error, -EINVAL, "step %" PRIu32 " was asked to end already",
		               m->step);
	/* From here on, it ends. */
	step->ends = true;
	step->end = work;
	work->step = step;
	work->layer = UINT32_MAX;
	fa_list_append(&step->works, &work->step_link);
	work->job.work.op = FA_DEVICE_NONE;
	work->job.confirms = true;
	end->commits = m->flags & FA_WIRE_STEP_COMMIT;
	step->aborts = !end->commits;
	if (m->flags & ~FA_WIRE_STEP_COMMIT)
		return fa_fail(error, -ENOTSUP,
		               "flags %#" PRIx32
		               " are not supported; expected none but %#x, commit",
		               m->flags, FA_WIRE_STEP_COMMIT);
	if ((m->n_keep || m->n_cu_keep) && !end->commits)
		return fa_fail(error, -EINVAL, "keep came, and flags do not say commit");
	r = bind_order(work, step, end->commits, error);
	if (r == 0 && (m->n_keep || m->n_cu_keep))
		r = keep(end, step, m, error);
	return r;
}

/* It has a step, which cannot be committed any more. */
static void refused(struct fa_request *work, const struct fa_wire_message *message)
{
	struct fa_kv_step *step = NULL;

	if (work->step)
		work->step->aborts = true;
	else if (fa_kv_step_find(work->session, message->step_end.step, NULL, &step) == 0)
		fa_kv_step_doom(step);
}

/* ---- the end */

static void confirm(struct fa_request *work)
{
	struct fa_context *context = work->session->context;
	struct fa_kv_step *step = work->step;
	struct fa_error error;
	int r = 0;

	fa_pool_set_time(context->kv->pool, fa_kv_now_ns());
	if (!end_of(work)->commits)
		fa_pool_step_abort(context->kv->pool, step->plan);
	else if (step->failed)
		r = fa_fail(&error, -ECANCELED,
		            "a request of step %" PRIu32 " has failed: it is aborted", step->id);
	else
		r = fa_pool_step_commit(context->kv->pool, step->plan, &error);
	step->over = !end_of(work)->commits || r == 0;
	fa_engine_confirm(context->engine, &work->job, r, &error);
}

/* Whatever was not committed is aborted. */
static void ended(struct fa_request *work)
{
	if (work->step) {
		work->step->doomed = true;
		/* Where a device is lost, or all is cancelled, it may be the first to end. */
		work->step->end = NULL;
	}
	fa_kv_step_work_ended(work);
}

const struct fa_request_kind fa_kv_end_kind = {
	.bytes = sizeof(struct end),
	.while_draining = true,
	.bind = bind_end,
	.release = release,
	.refused = refused,
	.confirm = confirm,
	.ended = ended,
};
