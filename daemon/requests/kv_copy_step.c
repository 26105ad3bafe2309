#include "daemon/requests/kv_copy_step.h"

#include "daemon/kv/sessions.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>

/* UINT32_MAX: none. */
static uint32_t find_entry(const struct fa_kv_step *step, uint64_t sequence)
{
	for (uint32_t i = 0; i < step->plan->n_entries; ++i)
		if (step->plan->entries[i].sequence == sequence)
			return i;
	return UINT32_MAX;
}

static int find_step(struct fa_session *session, const struct fa_kv_copy *copy,
                     struct fa_kv_step **ret_step, uint32_t *ret_entry, struct fa_error *error)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &session->kv.steps) {
		struct fa_kv_step *step = fa_container_of(pos, struct fa_kv_step, link);
		uint32_t i = find_entry(step, copy->sequence);
		const struct fa_pool_step_entry *entry;

		if (i == UINT32_MAX || step->end_requested)
			continue;
		entry = &step->plan->entries[i];
		if (copy->first < entry->before || copy->end > entry->after)
			continue;
		*ret_step = step;
		*ret_entry = i;
		return 0;
	}
	return fa_fail(error, -EINVAL,
	               "tokens %" PRIu64 " to %" PRIu64
	               " are to be written; expected some that a step in flight has planned for "
	               "the sequence",
	               copy->first, copy->end);
}

/* The step keeps the tokens in place until the copy ends. */
static int step_for_read(struct fa_session *session, const struct fa_kv_copy *copy,
                         struct fa_kv_step **ret_step, struct fa_error *error)
{
	const struct fa_pool_step_item item = { .sequence = copy->sequence };
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
	if (copy->first < entry->first || copy->end > entry->after) {
		r = fa_fail(error, -EINVAL,
		            "tokens %" PRIu64 " to %" PRIu64
		            " are to be read; the sequence has %" PRIu64 " to %" PRIu64,
		            copy->first, copy->end, entry->first, entry->after);
		fa_kv_step_abandon(step);
		return r;
	}
	*ret_step = step;
	return 0;
}

static void fill(struct fa_kv_copy_step *step, const struct fa_kv_copy *copy,
                 const struct fa_kv_group *group, uint32_t index)
{
	step->cu_new[0] = 0;
	step->cu_new[1] = (uint32_t)(copy->end - copy->first);
	step->before = (uint32_t)copy->first;
	step->length = (uint32_t)copy->end;
	step->first = group->step.first[index];
	step->table_start = group->step.table_start[index];
	step->step = (struct fa_paged_step){
		.batch = 1,
		.cu_new = step->cu_new,
		.lengths = &step->length,
		.lengths_before = &step->before,
		.first = &step->first,
		.table = group->step.table,
		.table_start = &step->table_start,
		.table_entries = group->step.table_entries,
		.host_table = group->step.host_table,
	};
}

int fa_kv_copy_step_join(struct fa_request *request, const struct fa_kv_copy *copy,
                         struct fa_kv_copy_step *ret_step, const struct fa_kv_group **ret_group,
                         struct fa_error *error)
{
	uint32_t entry = 0, index;
	const struct fa_kv_group *group;
	struct fa_kv_step *step = NULL;
	int r;

	if (copy->writes)
		r = find_step(request->session, copy, &step, &entry, error);
	else
		r = step_for_read(request->session, copy, &step, error);
	if (r < 0)
		return r;
	group = fa_kv_step_group(step, entry);
	index = entry - step->plan->groups[group - step->groups].begin;
	r = fa_kv_step_add(step, request, copy->layer, copy->n_layers, error);
	if (r < 0) {
		if (!copy->writes)
			fa_kv_step_abandon(step);
		return r;
	}
	/* The step of a read ends with its request. */
	step->abandoned = !copy->writes;
	fill(ret_step, copy, group, index);
	*ret_group = group;
	return 0;
}
